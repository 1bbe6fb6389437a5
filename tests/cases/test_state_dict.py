"""A user's own weights: read from a file, as they are or pruned, in cases that run on them."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from pytest_ecornn.cases import contents, state_dict
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.torch_cpu import TorchCpu
from pytest_ecornn.verification import calls, verification
from tests.helpers.foreign import QUICK, Foreign

MODULES = {
    "lstm": nn.LSTM(5, 12, 2, bidirectional=True),
    "gru": nn.GRU(12, 12, bias=False, dtype=torch.float64),
    "rnn": nn.RNN(3, 8),
}


def saved(folder: Path, model: nn.Module) -> str:
    path = folder / "model.pt"
    torch.save(model.state_dict(), path)
    return str(path)


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        ("lstm", "T7-B3", "lstm-T7-B3-I5-H12-L2-float32-bidirectional"),
        ("lstm", "lstm-T7-B3-H12-I5-bfloat16-training-batchfirst", "lstm-T7-B3-I5-H12-L2-bfloat16-bidirectional-batchfirst"),
        ("gru", "T1-B1-density0.25", "gru-T1-B1-H12-float64-nobias-density0.25"),
        ("rnn", "T7-B3-cuda-float16", "rnn_tanh-T7-B3-I3-H8-float16-cuda"),
        ("rnn", "rnn_relu-T7-B3-projected", "rnn_relu-T7-B3-H8-float32-projected"),
    ],
)
def test_a_case_is_completed_by_the_file(kind: str, text: str, name: str, tmp_path: Path) -> None:
    given = state_dict.load(saved(tmp_path, MODULES[kind]))
    case = given.case(text)
    assert str(case).startswith(f"{name}-weights{given.name}")
    assert Case.parse(str(case)) == given.case(str(case)) == case


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("T7-B3-H13", "says hidden_size 13, but .* has 12"),
        ("lstm-T7-B3-L1", "says layers 1, but .* has 2"),
        ("gru-T7-B3", "is of gru, but .* of lstm"),
        ("T7-B3-weights00000000", "says weights 00000000, but .* has"),
        ("T7-B3-half", "cannot read 'half' in case 'lstm-T7-B3-half'"),
        ("B3", "lacks T"),
    ],
)
def test_what_contradicts_the_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    given = state_dict.load(saved(tmp_path, MODULES["lstm"]))
    with pytest.raises(ValueError, match=message):
        given.case(text)


@pytest.mark.parametrize("options", ["", "-bfloat16", "-batchfirst-training", "-density0.2"])
def test_torch_runs_the_same_layer(options: str, tmp_path: Path) -> None:
    """What a case computes is what the module that was saved computes."""
    module = nn.LSTM(5, 12, 2, bidirectional=True)
    case = state_dict.load(saved(tmp_path, module)).case(f"T7-B3{options}")
    problem = contents.problem(case)
    for name, weight in problem.weights.items():
        if name.startswith("weight_hh") and case.density < 1:
            prune.l1_unstructured(module, name, 1 - case.density)
        assert torch.equal(weight, getattr(module, name).to(weight.dtype)), name
    candidate = verification.Candidate.build("torch_cpu", TorchCpu, case)
    assert [one.message for one in candidate.verify() if one.status == "failed"] == []
    if options == "":
        output, _ = calls.Call(problem).forward(candidate.layer)
        assert torch.allclose(output, module(problem.x)[0], atol=1e-6)


@pytest.mark.parametrize("is_permanent", [True, False])
def test_what_torch_has_pruned_stays_pruned(is_permanent: bool, tmp_path: Path) -> None:
    module = nn.LSTM(5, 12, 2)
    prune.l1_unstructured(module, "weight_hh_l0", 0.75)
    prune.random_unstructured(module, "weight_hh_l1", 0.5)
    prune.l1_unstructured(module, "weight_ih_l0", 0.5)
    expected = {name: getattr(module, name).detach().clone() for name in ("weight_hh_l0", "weight_hh_l1", "weight_ih_l0")}
    for name in expected if is_permanent else ():
        prune.remove(module, name)
    case = state_dict.load(saved(tmp_path, module)).case("T7-B3")
    assert case.density == 0.375
    weights = contents.make_weights(case)
    for name, value in expected.items():
        assert torch.equal(weights[name], value)
    assert {name: int(mask.sum()) for name, mask in weights.masks.items()} == {"weight_hh_l0": 144, "weight_hh_l1": 288}
    other = contents.make_weights(case, "other")
    assert torch.equal(other["weight_hh_l0"] != 0, expected["weight_hh_l0"] != 0)
    assert not torch.equal(other["weight_hh_l0"], expected["weight_hh_l0"])


def test_a_pruned_file_is_pruned_further_but_never_less(tmp_path: Path) -> None:
    module = nn.GRU(4, 10)
    prune.random_unstructured(module, "weight_hh_l0", 0.5)
    given = state_dict.load(saved(tmp_path, module))
    mask = contents.make_weights(given.case("T1-B1-density0.1"))["weight_hh_l0"] != 0
    left = module.weight_hh_l0.detach().abs()
    assert int(mask.sum()) == 30
    assert left[mask].min() >= left[~mask].max()
    with pytest.raises(ValueError, match=r"asks for density 0.6, but of .* only 0.5 is left"):
        given.case("T1-B1-density0.6")


def test_a_module_of_a_model_is_chosen_by_name(tmp_path: Path) -> None:
    model = nn.ModuleDict({"encoder": nn.LSTM(3, 4), "decoder": nn.ModuleDict({"rnn": nn.GRU(4, 5)}), "head": nn.Linear(4, 2)})
    path = saved(tmp_path, model)
    assert state_dict.read(f"{path}:decoder.rnn").case("T2-B2").cell == "gru"
    with pytest.raises(ValueError, match=re.escape(f"has 2 modules: expected one of {path}:encoder, {path}:decoder.rnn")):
        state_dict.read(path)
    with pytest.raises(ValueError, match=r"has no module 'head': expected one of"):
        state_dict.read(f"{path}:head")


@pytest.mark.parametrize("text", [None, "", "not torch's"])
def test_a_file_that_cannot_be_read_is_refused(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "model.pt").write_text(text)
    with pytest.raises(ValueError, match=r"cannot read .*model.pt .*expected what torch.save"):
        state_dict.read(str(tmp_path / "model.pt"))


# From the command line.


def test_a_pruned_model_is_timed_by_one_command(tmp_path: Path) -> None:
    path = saved(tmp_path, nn.LSTM(5, 12))
    done = Foreign(tmp_path).run(
        "--ecornn-bench", "--ecornn-state-dict", path, "--ecornn-case", "T9-B2-density0.2", "--ecornn-only", "torch_cpu",
        "--ecornn-only", "sequential", *QUICK, check=0,
    )  # fmt: skip
    assert "5 passed" in done.stdout
    report = (tmp_path / "reports/local/report.md").read_text()
    assert re.search(r"lstm-T9-B2-I5-H12-float32-density0.2-weights[0-9a-f]{8} \|", report)
    assert "**weights** in a case's name are those of a state dict" in report


def test_a_failure_is_repeated_by_its_command(tmp_path: Path) -> None:
    foreign, path = Foreign(tmp_path), saved(tmp_path, nn.LSTM(5, 12))
    given = state_dict.read(path)
    foreign.write(
        "wrong.py",
        "from pytest_ecornn.implementations.torch_cpu import TorchCpu\n"
        "class Wrong(TorchCpu):\n"
        "    def build(self, case, weights):\n"
        "        layer = super().build(case, weights)\n"
        "        return lambda *arguments: (layer(*arguments)[0] + 1, layer(*arguments)[1])\n",
    )
    wanted = ("--ecornn-verify", "--ecornn-implementations", "wrong.py", "--ecornn-only", "wrong")
    done = foreign.run(*wanted, "--ecornn-state-dict", path, "--ecornn-case", "T9-B2", check=1)
    again = f'--ecornn-case "lstm-T9-B2-I5-H12-float32-weights{given.name}" --ecornn-implementations *wrong.py'
    assert fnmatch.filter(done.stdout.splitlines(), f"*again: pytest*{again} --ecornn-state-dict {path}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ecornn-case", "lstm-T9-B2-H12-weights01234567"], "expected --ecornn-state-dict FILE, of weights01234567"),
        (["--ecornn-state-dict", "absent.pt"], "cannot read *absent.pt"),
        (["--ecornn-state-dict", "pipe"], "cannot read *pipe (it is no regular file): expected what torch.save*"),
        (["--ecornn-state-dict", "text.pt"], "cannot read *text.pt (it is damaged, or torch.save did not write it): expected*"),
        (["--ecornn-state-dict", "far.pt"], "*far.pt: weight_hh_l99999999: expected layers 0, 1, ... without a gap*"),
        (["--ecornn-state-dict", "absent.pt", "--ecornn-cases", "smoke"], "expected --ecornn-case beside it"),
    ],
)
def test_a_wrong_option_stops_the_run(options: list[str], message: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text.pt").write_text("\x1b[31mnot torch's")
    torch.save({**nn.LSTM(3, 4).state_dict(), "weight_hh_l99999999": torch.zeros(16, 4)}, tmp_path / "far.pt")
    done = Foreign(tmp_path).run_here("--ecornn-verify", *options, check=4)
    assert fnmatch.filter(done.stderr.splitlines(), f"*{message}*")
