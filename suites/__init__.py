"""What is run: named case sets, equivalence, benchmarks."""
