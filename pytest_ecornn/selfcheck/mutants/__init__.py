"""One wrong kernel to a file."""
