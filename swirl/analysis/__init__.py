"""What is known about programs: sets of integers, dependences, footprints, items, facts about loops."""
