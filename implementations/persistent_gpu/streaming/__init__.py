"""Grids that stream a part of W_hh in every step: their forms, what a step takes, and what a GEMM a step takes."""
