"""Choosing schedules: which commands there are to choose from, and what becomes of a program by them."""
