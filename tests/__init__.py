"""Tests of leakbench."""
