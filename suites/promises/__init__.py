"""Measures the harness's own promises on a CUDA device; each promise has a module of its own."""
