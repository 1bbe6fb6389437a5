"""Random numbers of a case: one generator for each seed and role."""

from __future__ import annotations

import zlib

import torch


def generator(seed: int, role: str) -> torch.Generator:
    """A generator that draws the same numbers for the same seed and role, and others for another."""
    return torch.Generator().manual_seed((seed * 1_000_003 + zlib.crc32(role.encode())) & 0x7FFF_FFFF_FFFF_FFFF)
