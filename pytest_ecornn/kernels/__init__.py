"""Proof and stopwatch for any function on tensors: `check` against a reference in float64, `compare` in alternating blocks."""
