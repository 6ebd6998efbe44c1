"""What a recipe talks to: commands dispatched, queries, the log, files, the state of a plan, what is kept of them."""
