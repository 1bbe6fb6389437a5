"""Wrong kernels, planted to see whether the harness catches them: see `trial`."""
