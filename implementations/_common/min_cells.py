"""Names of the cells of "Were RNNs All We Needed?" (arXiv 2410.01201), whose state is linear in the one before."""

from __future__ import annotations

MIN_CELLS = ("mingru", "mingru_positive", "minlstm", "minlstm_positive")
POSITIVE_CELLS = ("mingru_positive", "minlstm_positive")  # of them those whose state has a logarithm: appendix B
