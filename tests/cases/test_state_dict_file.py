"""Files that anyone may have made: each is refused in one line that names the file and the tensor."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_ecornn.cases import state_dict

_W_HH = torch.ones(16, 4)


def _lstm(**changes: Any) -> dict[str, Any]:
    return {**nn.LSTM(3, 4).state_dict(), **changes}


def _nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.zeros(4), torch.zeros(3)])


def _pruned(mask: torch.Tensor) -> dict[str, Any]:
    """As torch.nn.utils.prune leaves it, with another mask."""
    content = _lstm(weight_hh_l0_orig=_W_HH, weight_hh_l0_mask=mask)
    del content["weight_hh_l0"]
    return content


_DENSE = "weight_hh_l0: expected a dense tensor, got one that is"
_HOSTILE: dict[str, tuple[dict[Any, Any], str]] = {
    "of another module": (nn.Linear(3, 4).state_dict(), "has no weight_hh_l0, but weight, bias: expected what torch.save"),
    "empty": ({}, "has no weight_hh_l0, but nothing"),
    "of a training": ({"step": 3, "model": _lstm()}, "holds something else than tensors by names"),
    "projections": (
        nn.LSTM(3, 4, proj_size=2).state_dict(),
        r"expected \[G\*H, H\] with G 1, 3 or 4 and no proj_size, got \[16, 2\]",
    ),
    "a layer of another input size": (
        {**nn.LSTM(3, 4, 2).state_dict(), "weight_ih_l1": torch.zeros(16, 5)},
        r"shape \[16, 4\], got shape \[16, 5\]",
    ),
    "another parameter": (_lstm(weight_hr_l0=torch.zeros(4, 4)), "weight_hr_l0: expected no such parameter"),
    "one tensor alone": ({"weight_hh_l0": torch.zeros(4, 4)}, "weight_ih_l0: expected shape .*, got none"),
    "float8": (nn.LSTM(3, 4).to(torch.float8_e4m3fn).state_dict(), "expected one of float32, .* got torch.float8_e4m3fn"),
    "a mask of another shape": (
        _pruned(torch.ones(16, 5)),
        r"weight_hh_l0_mask: expected shape \[16, 4\], got \[16, 5\]",
    ),
    "a mask of other numbers": (_pruned(_W_HH / 2), "weight_hh_l0_mask: expected zeros and ones"),
    "no hidden units": (
        _lstm(weight_hh_l0=torch.zeros(0, 0)),
        r"weight_hh_l0: expected at least one element, got shape \[0, 0\]",
    ),
    "integer keys": ({0: torch.zeros(2), "weight_hh_l0": _W_HH}, "expected names as keys, got 0"),
    "sparse": (_lstm(weight_hh_l0=_W_HH.to_sparse()), f"{_DENSE} torch.sparse"),
    "nested": (_lstm(weight_hh_l0=_nested()), f"{_DENSE} nested"),
    "without values": (_lstm(weight_hh_l0=_W_HH.to("meta")), "weight_hh_l0: expected a tensor with values, got"),
    "one dimension": (
        _lstm(weight_hh_l0=torch.zeros(16)),
        r"weight_hh_l0: expected two dimensions, .* got shape \[16\]",
    ),
    "three dimensions": (_lstm(weight_hh_l0=_W_HH[..., None]), "weight_hh_l0: expected two dimensions"),
    "weight_ih of one dimension": (_lstm(weight_ih_l0=torch.zeros(16)), "weight_ih_l0: expected two dimensions"),
    "a layer far away": (_lstm(weight_hh_l99999999=_W_HH), "weight_hh_l99999999: expected layers 0, 1, ... without a gap"),
    "a number of many digits": (
        _lstm(**{f"weight_hh_l{'9' * 5000}": _W_HH}),
        r"weight_hh_l9+\.\.\.: expected no such parameter",
    ),
    "more elements than numbers": (
        _lstm(weight_hh_l0=torch.zeros(1, 1).expand(16_000_000, 4_000_000)),
        "weight_hh_l0: expected as many elements in the file as in the tensor",
    ),
    "not a number": (_lstm(weight_hh_l0=_W_HH * float("nan")), "weight_hh_l0: expected finite numbers, got NaN"),
    "an object": (_lstm(weight_hh_l0=slice(3)), "it holds an object of slice, not tensors alone"),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_hostile_file_is_refused_in_one_line_that_names_file_and_tensor(name: str, tmp_path: Path) -> None:
    content, message = _HOSTILE[name]
    path = tmp_path / "model.pt"
    torch.save(content, path)
    with pytest.raises(ValueError, match=message) as error:
        state_dict.read(str(path))
    text = str(error.value)
    assert str(path) in text
    assert "\n" not in text
    assert "weights_only" not in text
