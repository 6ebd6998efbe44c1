"""Trained nets as C++ libraries: ``latte export``."""
