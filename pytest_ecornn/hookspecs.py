"""Hooks by which a conftest.py or another plugin adds to a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ecornn.contract.cells import Cell


@pytest.hookspec
def pytest_ecornn_implementations(config: pytest.Config) -> list[Path] | None:
    """Files that hold an implementation each, or folders of such files.

    In conftest.py::

        from pathlib import Path

        def pytest_ecornn_implementations(config):
            return [Path(__file__).parent / "kernels" / "my_scan.py"]
    """


@pytest.hookspec
def pytest_ecornn_case_sets(config: pytest.Config) -> list[Path] | None:
    """CSV files of cases, as `--ecornn-cases` takes them: each is a set by the file's name.

    With it `--ecornn-cases my_paper` runs the cases of my_paper.csv. In conftest.py::

        from pathlib import Path

        def pytest_ecornn_case_sets(config):
            return [Path(__file__).parent / "my_paper.csv"]
    """


@pytest.hookspec
def pytest_ecornn_cells(config: pytest.Config) -> list[Cell] | None:
    """Cells beside the built-in ones.

    A peephole LSTM (Gers and Schmidhuber, 2000), in conftest.py::

        import torch
        from pytest_ecornn import Cell

        def step(x_gates, h_gates, state, extra):
            h, c = state
            p_i, p_f, p_o = extra["weight_ch"].chunk(3)
            i, f, g, o = (a + b for a, b in zip(x_gates, h_gates))
            new_c = torch.sigmoid(f + p_f * c) * c + torch.sigmoid(i + p_i * c) * torch.tanh(g)
            return torch.sigmoid(o + p_o * new_c) * torch.tanh(new_c), new_c

        def pytest_ecornn_cells(config):
            return [Cell("peephole_lstm", ("i", "f", "g", "o"), ("h", "c"), step, extra={"weight_ch": 3}, keep={"f": 1.0})]
    """
