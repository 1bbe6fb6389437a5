"""Measures the harness's own promises, most of them on a CUDA device; each promise has a module of its own."""
