"""Wrong kernels, a family to a module."""
