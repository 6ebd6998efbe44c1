"""Loops cut, joined, reordered, and their bounds."""
