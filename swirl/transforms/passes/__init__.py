"""The automatic passes, in the order of :mod:`swirl.pipeline`: program in, program out."""
