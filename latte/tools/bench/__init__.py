"""Benchmarks: both sides measured alternately in one run, after their results were compared."""
