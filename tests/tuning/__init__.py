"""Tests of normgen.tuning."""
