"""The automatic passes, in the order of :mod:`swirl.schedule.pipeline`: program in, program out."""
