"""The documentation, and what makes its printed output anew."""
