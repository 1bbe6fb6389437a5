"""The sequence diagrams of docs/kernels, drawn from tables of boxes and arrows."""
