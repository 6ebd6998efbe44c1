"""What the compiler did, for people and as JSON."""
