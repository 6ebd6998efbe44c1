"""TTiLE: schedules of contractions as schemes of atoms over micro-kernels (N. Tollenaere, *Decoupling tile sizes and
microkernels*, thesis)."""
