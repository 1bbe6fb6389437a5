"""A plain loop over time steps, any cell, any device: on a GPU the literature's "default"."""

from __future__ import annotations

from pytest_ecornn.reference import loop


class Sequential(loop.ReferenceLoop):
    """The reference loop as an implementation, which rounds where the contract's defaults say."""
