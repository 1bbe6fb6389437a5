"""The GPUs of a host: locks, what a process uses of them, and what others do."""
