"""Reductions: partial results, means, the place of a greatest or least value."""
