"""The dimensions that constants are about, by the names beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ecornn.cases.sources.size_hints import size_hints

HINTS = [
    ("if steps > 96: pass", "T"),
    ("num_steps = 96", "T"),
    ("hiddenSize = 96", "H"),
    ("kBatchTile = 96", "BI"),
    ("width = 96", ""),
    ("CHUNK = 96", "T"),
    ("CHUNK = 96\nif batch == CHUNK: pass", "BT"),
    ("h = h[:, :96]", "H"),
    ("for t in range(0, T, 96): pass", "T"),
    ("run(x, batch_tile=96)", "B"),
    ("tail = case.input_size % 96", "I"),
    ("SOURCE = '''\n#define MAX_SEQUENCES 96\n'''", "B"),
    ("x = y[96]", ""),
    ("x = (", ""),
]


@pytest.mark.parametrize(("source", "dims"), HINTS)
def test_names_beside_a_constant_say_its_dimension(source: str, dims: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(source)
    assert size_hints(tmp_path / "mine.py").get(96, "") == dims
