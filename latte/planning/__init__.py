"""What is compiled together, by which recipes, and with which layouts."""
