"""The command line, tuning by hand, benchmarks."""
