"""Faults in fused_cpu's text apply to the text that is there, and change a copy alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations import fused_cpu
from pytest_ecornn.selfcheck import planting
from pytest_ecornn.selfcheck._changed_source import ChangedFusedCpu, changed_package

FAULTS = [layer for layer in planting.layers(planting.MUTANTS) if issubclass(layer, ChangedFusedCpu)]


@pytest.mark.parametrize("layer", FAULTS, ids=planting.name_of)
def test_what_a_fault_replaces_stands_there_once(layer: type[ChangedFusedCpu]) -> None:
    source = (Path(fused_cpu.__file__).parent / layer.file).read_text(encoding="utf-8")
    assert source.count(layer.text) == 1
    changed = source.replace(layer.text, layer.replacement)
    assert changed != source
    compile(changed, layer.file, "exec")


def test_a_text_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"panels.py: expected once the text that a fault replaces, got it 0 times: no such"):
        changed_package("fused_cpu_absent", "panels.py", "no such text", "")


def test_a_copy_computes_what_its_text_says_by_modules_and_ops_of_its_own() -> None:
    case = Case.parse("rnn_relu-T1-B2-I3-H9-float32")
    weights, x, ops = contents.make_weights(case), torch.randn(1, 2, 3), own_ops()
    changed = changed_package(
        "fused_cpu_of_no_relu", "cell_steps.py", "return x.constant(0.0).where(x.less(0.0), x)", "return x"
    )
    before, after = (package.FusedCpu().build(case, weights)(x, (), None)[0] for package in (changed, fused_cpu))
    assert (before < 0).any()
    assert torch.equal(before.relu(), after)
    assert own_ops() == ops


def own_ops() -> set[str]:
    schemas = torch._C._jit_get_all_schemas()
    return {schema.name for schema in schemas if schema.name.startswith("pytest_ecornn::")}
