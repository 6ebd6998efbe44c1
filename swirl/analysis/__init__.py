"""What is known about programs: the loop tree of a nest, footprints, dependences, sets of integers, items."""
