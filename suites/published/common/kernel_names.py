"""Classifies kernels by name: a matrix product, a scan over time, something pointwise, or anything else."""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["product", "scan", "pointwise", "other"]

# Products first: the names of some hold their epilogue's, which may be elementwise.
_PRODUCT = re.compile(r"gemm|gemv|gemk|nvjet|cutlass|xmma|split_?k", re.IGNORECASE)
_SCAN = re.compile(r"scan", re.IGNORECASE)
_POINTWISE = re.compile(r"element_?wise|pointwise|\bstep_(forward|backward)\b|lstm_cell|gru_cell", re.IGNORECASE)
_SUM_OF_PARTS = re.compile(r"split_?k_?reduce", re.IGNORECASE)


def kind_of(kernel: str) -> Kind:
    """Returns the kind of a kernel of cuBLAS, cuDNN, torch or this project; a sum of a product's split parts is a product."""
    if _PRODUCT.search(kernel):
        return "product"
    if _SCAN.search(kernel):
        return "scan"
    return "pointwise" if _POINTWISE.search(kernel) else "other"


def is_main_product(kernel: str) -> bool:
    """A product, but not the sum over its split parts."""
    return kind_of(kernel) == "product" and not _SUM_OF_PARTS.search(kernel)
