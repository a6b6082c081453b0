"""Tests of normgen.cpu."""
