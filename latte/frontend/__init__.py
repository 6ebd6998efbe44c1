"""Bodies are read, translated and lowered to programs of loop nests."""
