"""Tests of normgen.program."""
