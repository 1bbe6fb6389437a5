"""Code that kernels share: compilation, launching, device headers. No implementations."""
