"""Tests of normgen.codegen."""
