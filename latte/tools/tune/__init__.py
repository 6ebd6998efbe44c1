"""``latte tune``: searches for schedules, and writes what it finds as recipes of entries."""
