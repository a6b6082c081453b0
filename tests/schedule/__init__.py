"""Tests of normgen.schedule."""
