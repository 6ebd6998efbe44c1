"""Values that stay the same, and how values change from iteration to iteration."""
