"""persistent_gpu's forms for many sequences: a persistent GEMM a step by wgmma."""
