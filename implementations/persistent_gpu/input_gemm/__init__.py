"""The input product of float32 layers: by which kernel, and by which tiles."""
