"""Suites that this project runs: named case sets, equivalence, benchmarks."""
