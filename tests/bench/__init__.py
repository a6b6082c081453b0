"""Tests of normgen.bench."""
