"""Every stage of a compilation as a Python file that anybody can run, edit and compare."""
