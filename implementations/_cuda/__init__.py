"""What kernels share: compilation, launching, device headers. No implementations."""
