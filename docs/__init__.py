"""The documentation, and what updates its printed output."""
