"""For all tests."""

import gc

# Programs are trees without cycles: looking for garbage as often as Python does takes an eighth of the time.
gc.set_threshold(100_000, 20, 20)
