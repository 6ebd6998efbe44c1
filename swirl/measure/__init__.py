"""What this machine reaches."""
