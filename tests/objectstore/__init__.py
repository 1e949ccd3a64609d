"""Tests of lsmfs.objectstore beyond the conformance suite."""
