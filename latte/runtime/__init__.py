"""Compiled nets: buffers, kernels, phases, training."""
