"""What a nest costs: the instructions that it issues, the bytes that come into each cache, and the time of both."""
