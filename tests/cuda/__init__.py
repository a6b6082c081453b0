"""Tests of normgen.cuda."""
