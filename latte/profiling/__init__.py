"""How long each loop nest of a training step takes, beside what the machine can do at the best."""
