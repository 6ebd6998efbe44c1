"""Settings that benchmarks for the original assign. Nothing reads them: recipes choose these factors."""

forward_unroll_factor = 8
backward_unroll_factor = 8
