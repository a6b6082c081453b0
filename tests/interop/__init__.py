"""Tests of normgen.interop."""
