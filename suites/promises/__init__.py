"""What the harness promises of itself on a CUDA device, each promise measured by a module of its own."""
