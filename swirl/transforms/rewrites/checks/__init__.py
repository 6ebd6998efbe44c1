"""Whether a rewrite is right, and what a refusal says."""
