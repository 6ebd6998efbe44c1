"""AutoMCL: schedules of products and convolutions by name, whose tile sizes are factors, with analytic models of caches
and learned models of times (*Auto-tuning matrix multiplication and convolution for deep learning on CPUs*)."""
