"""Running kernels: threads, and memory for buffers."""
