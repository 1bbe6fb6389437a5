"""What an adapter runs that has one layer in one direction, on a CPU."""

from typing import Any

from pytest_ecornn import SupportedCases

_OPTIONS: dict[str, Any] = {
    **{"dtypes": ("float32",), "devices": ("cpu",), "max_layers": 1},
    **dict.fromkeys(("bidirectional", "nobias", "ragged", "projected", "sparse"), False),
}


def one_layer(*cells: str, **options: Any) -> SupportedCases:
    return SupportedCases(cells, **{**_OPTIONS, **options})
