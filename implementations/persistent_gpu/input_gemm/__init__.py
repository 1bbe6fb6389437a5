"""Computes the input product of float32 layers, by 3xTF32 or by cuBLAS."""
