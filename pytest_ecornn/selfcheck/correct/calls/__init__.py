"""Right implementations that are called or store otherwise: layouts, memory, threads."""
