"""The report of language models: words, layers, training steps and losses on a CPU, and what the tables and charts say."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from pytest_ecornn.implementations.sequential import Sequential
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published import language_model
from pytest_ecornn.suites.published.language_model_parts import (
    losses,
    recurrent_layers,
    throughput,
    training,
)
from pytest_ecornn.suites.published.language_model_parts.recurrent_layers import ModelSizes
from pytest_ecornn.suites.published.language_model_parts.throughput import ArmRate, Configuration, Row
from pytest_ecornn.suites.published.language_model_parts.training import Training
from tests.helpers.reporting.pictures import texts
from tests.helpers.requirements import HAS_BFLOAT16_LSTM, needs_bfloat16_lstm, needs_gpu
from tests.helpers.studies import cells_of

CPU = torch.device("cpu")
CORPUS = training.zipf(50, 3000)
TRAINED_DTYPE = "bfloat16" if HAS_BFLOAT16_LSTM else "float32"  # the precision of models that are trained


def small(precision: str = "float32", dropout: float = 0.0) -> ModelSizes:
    return ModelSizes(16, CORPUS.vocabulary, precision, dropout, batch=4, steps=5)


def test_words_follow_zipfs_law() -> None:
    counts = training.zipf(10, 200_000).words.bincount(minlength=10).double()
    expected = 1 / torch.arange(1, 11, dtype=torch.float64)
    torch.testing.assert_close(counts / counts.sum(), expected / expected.sum(), rtol=0.05, atol=0.0)


def test_a_texts_words_are_ranked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat the\n\n the dog\n")
    corpus = training.read(tmp_path / "a.txt")
    assert (corpus.vocabulary, corpus.source) == (4, "a.txt")
    assert corpus.words.tolist() == [0, 2, 0, 1, 0, 3, 1]  # the, <eos>, cat, dog
    (tmp_path / "b.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"b\.txt: expected a text of two words at least, got 0"):
        training.read(tmp_path / "b.txt")


def test_batches_go_on_where_the_one_before_ended() -> None:
    corpus = training.Corpus(torch.arange(12), 12, "counting")
    batches = corpus.batches(steps=3, batch=2, count=3, device=CPU)
    assert batches.shape == (3, 4, 2)
    assert batches[:, :, 0].tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert batches[:, :, 1].tolist() == [[6, 7, 8, 9], [9, 10, 11, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bfloat16_lstm)])
def test_layers_of_an_implementation_are_nn_lstm(dtype: str) -> None:
    reference: Any = recurrent_layers.make_layer("nn.LSTM", small(dtype), "cpu")
    layer = recurrent_layers.ContractLSTM(Sequential(), small(dtype), "cpu")
    layer.load_state_dict(reference.state_dict())
    x, state = torch.randn(5, 4, 16), (torch.randn(2, 4, 16), torch.randn(2, 4, 16))
    for _ in range(2):  # cast parameters are where they were, of other values
        for parameter in (*layer.parameters(), *reference.parameters()):
            parameter.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            results = [module(x, state) for module in (layer, reference)]
        for output, _ in results:
            output.float().square().sum().backward()
        close = {"rtol": 0.05, "atol": 0.05} if dtype == "bfloat16" else {"rtol": 1e-4, "atol": 1e-4}
        for mine, theirs in zip((results[0][0], *results[0][1]), (results[1][0], *results[1][1]), strict=True):
            torch.testing.assert_close(mine.float(), theirs.float(), **close)
        for mine, theirs in zip(layer.parameters(), reference.parameters(), strict=True):
            assert mine.grad.dtype == torch.float32
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=0.1, atol=0.1 * float(theirs.grad.abs().max()))
        for mine, theirs in zip(layer.parameters(), reference.parameters(), strict=True):
            with torch.no_grad():
                mine.mul_(0.5)
                theirs.copy_(mine)


def test_cast_parameters_stay_in_one_place() -> None:
    layer = recurrent_layers.ContractLSTM(Sequential(), small("bfloat16"), "cpu")
    weights = recurrent_layers._CastWeights(layer, 1, torch.bfloat16)
    assert list(weights) == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    places = [{name: weights[name].data_ptr() for name in weights} for _ in range(2)]
    assert places[0] == places[1]
    assert torch.equal(weights["weight_hh_l0"], layer.weight_hh_l1.to(torch.bfloat16))


def test_a_model_learns_what_repeats() -> None:
    corpus = training.Corpus(torch.arange(3000) % 7, 50, "counting")
    module = Training("nn.LSTM", small(), corpus.batches(5, 4, 64, CPU), CPU)
    first, *_, last = (float(module.step()) for _ in range(300))
    assert first == pytest.approx(3.9, abs=0.1)  # log 50
    assert last < 2.5


def test_states_go_on_from_step_to_step() -> None:
    batches = CORPUS.batches(5, 4, 8, CPU)
    module = Training("nn.LSTM", small(), batches, CPU)
    module.step()
    states = [state.clone() for state in module._state]
    assert all(state.abs().max() > 0 for state in states)
    module.step()
    assert not torch.equal(states[0], module._state[0])


def few(corpora: Any) -> list[Configuration]:
    kinds = product(training.PRECISIONS, throughput.STEP_KINDS)
    return [Configuration(small(precision), way, training.ZIPF) for precision, way in kinds]


def test_a_run_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_BLOCK_US", 500.0)
    monkeypatch.setattr(throughput, "configurations", few)
    monkeypatch.setattr(losses, "STEPS", 20)
    monkeypatch.setattr(losses, "LAST", 5)
    monkeypatch.setattr(losses, "models", lambda corpus, dropout: [small(TRAINED_DTYPE, dropout)])
    plan = language_model.make_plan([CORPUS], "cpu")
    plan.run(tmp_path, 300.0, ["words", "losses", "seeds"])
    text = (tmp_path / "language_model.md").read_text()
    (line,) = [one for one in cells_of(text, "2 x 16") if one[1] == "float32"]
    assert line[4:6] == ["-", "-"]  # transposed_gpu, persistent_gpu
    assert float(line[6].split()[0]) > 0  # auto
    assert "- transposed_gpu, 3 rows, as 2 x 16, 50 words, float32, eager: ValueError: runs on a CUDA device" in text
    assert "no CUDA graphs on cpu" in text
    curves = {one[1]: one[7] for one in cells_of(text, f"2 x 16, {TRAINED_DTYPE}, pairs")}
    assert curves["nn.LSTM"] == curves["auto"] == "yes"
    assert "sequential" not in curves  # the yardstick itself
    seeds = {one[1]: one[2:] for one in cells_of(text, f"2 x 16, {TRAINED_DTYPE}, pairs, dropout 0.5")}
    assert seeds["auto"][2] == "yes"
    assert seeds["transposed_gpu"] == ["-", "-", "ValueError: runs on a CUDA device"]
    ElementTree.parse(tmp_path / "words_per_s_50_eager.svg")
    before = json.loads((tmp_path / "language_model.json").read_text())
    plan.run(tmp_path / "again", 300.0, ["words"], tmp_path / "language_model.json")
    assert json.loads((tmp_path / "again/language_model.json").read_text())["rows"] == before["rows"]


def test_the_published_models_have_all_precisions_and_the_dropout_that_is_asked_for() -> None:
    corpora = [training.zipf(vocabulary, 100) for vocabulary in language_model.VOCABULARIES[::-1]]
    assert str(throughput.configurations(corpora)[0]) == "2 x 650, 10,000 words, float32, eager"
    assert {one.sizes.precision for one in throughput.configurations([CORPUS])} == {*training.PRECISIONS}
    assert [sizes.dropout for sizes in losses.models(CORPUS, 0.5)] == [0.5] * 6


def made_up(precision: str, **dtypes: str) -> Row:
    """Each layer as fast as nn.LSTM, but persistent_gpu, which does not fit. dtypes: of outputs."""
    even = Ratio(1.0, 1.0, 1.0)
    arms = {name: ArmRate((1.0,) * 3, {"nn.LSTM": even}, dtype=dtypes.get(name, "")) for name in throughput.ARMS}
    arms["persistent_gpu"] = ArmRate(reason="does not fit")
    return Row(Configuration(ModelSizes(650, 10_000, precision), "eager", training.ZIPF), arms)


def test_a_chart_says_what_was_not_run() -> None:
    (picture,) = throughput.figures([made_up("float32"), made_up("tf32")]).values()
    assert texts(ElementTree.fromstring(picture)).count("not run") == 2


def test_another_dtype_than_the_rows_is_said() -> None:
    text = throughput.render([made_up("float32"), made_up("bfloat16", **{"nn.LSTM": "float16", "auto": "bfloat16"})])
    assert "nn.LSTM returns float16 in bfloat16 rows." in text
    assert "auto returns" not in text


def test_words_of_pairs_follow_from_the_one_before() -> None:
    drawn = training.pairs(50, 4000, 20).words
    followers = [drawn[1:][drawn[:-1] == word].bincount(minlength=20) for word in range(20)]
    shares = [float(one.max() / one.sum()) for one in followers]
    assert all(share == pytest.approx(0.9 + 0.1 / 20, abs=0.06) for share in shares)
    assert len({int(one.argmax()) for one in followers}) == 20
    assert int(drawn.max()) < 20


def measured_losses(measure: Any, corpus: training.Corpus, earlier: Any = (), dropout: float = 0.0) -> list[Any]:
    """Of a small model on a CPU."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(losses, "models", lambda *_: [small("float32", dropout)])
        return list(measure(float("inf"), earlier, corpus=corpus, device="cpu"))


class MixedUp(nn.LSTM):
    """A layer that gives each sequence the output of another."""

    def forward(self, x: Any, state: Any) -> Any:
        output, state = super().forward(x, state)
        return output.roll(1, 1), state


def test_a_layer_that_mixes_sequences_up_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(name: str, sizes: ModelSizes, device: str, seed: int = 0) -> nn.Module:
        layer = recurrent_layers.make_layer("nn.LSTM" if name in losses.OURS else name, sizes, device, seed)
        if name == "auto":
            layer.__class__ = MixedUp
        return layer

    monkeypatch.setattr(training, "make_layer", make)
    monkeypatch.setattr(losses, "STEPS", 200)
    monkeypatch.setattr(losses, "LAST", 50)
    monkeypatch.setattr(losses, "SEEDS", 3)
    corpus = training.pairs(50, 3000, 10)
    curves = measured_losses(losses.measure_curves, corpus)
    said = {one[1]: one[7] for one in cells_of(losses.render_curves(curves), "2 x 16, float32, pairs")}
    assert (said["persistent_gpu"], said["auto"]) == ("yes", "no")
    seeds = measured_losses(losses.measure_seeds, corpus, dropout=0.1)
    said = {one[1]: one[4] for one in cells_of(losses.render_seeds(seeds), "2 x 16, float32, pairs, dropout 0.1")}
    assert (said["persistent_gpu"], said["auto"]) == ("yes", "no")


def test_losses_of_other_words_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "STEPS", 2)
    earlier = [losses.CurveRow(small(), "a.txt"), losses.CurveRow(small(), "pairs")]
    rows = measured_losses(losses.measure_curves, replace(CORPUS, source="b.txt"), earlier)
    assert [row.words for row in rows] == ["a.txt", "pairs", "b.txt"]
    assert measured_losses(losses.measure_curves, replace(CORPUS, source="a.txt"), earlier) == earlier


@needs_gpu
@pytest.mark.parametrize("name", ["nn.LSTM", "sequential", "transposed_gpu", "persistent_gpu", "auto", "no recurrent layer"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_captured_step_trains_as_one_that_is_called(name: str, precision: str) -> None:
    device, sizes = torch.device("cuda"), ModelSizes(64, CORPUS.vocabulary, precision, 0.0, batch=4, steps=5)
    batches = CORPUS.batches(5, 4, 8, device)
    eager, captured = (Training(name, sizes, batches, device) for _ in range(2))
    captured.capture()
    for _ in range(3):  # as the capture's warm-up did
        eager.step()
    for _ in range(4):
        torch.testing.assert_close(captured.step(), eager.step(), rtol=2e-3, atol=2e-3)


def test_what_agrees_is_within_both_limits_and_both_deviations_together() -> None:
    curves = {"nn.LSTM": losses.Curve(1e-7, 1e-6), "auto": losses.Curve(3e-7, 1e-6), "sequential": losses.Curve(1e-7, 3e-6)}
    curve_row = losses.CurveRow(small(), "pairs", curves, (2e-7, 2e-6))
    assert [curve_row.agrees(name) for name in curves] == [True, False, False]
    of_seeds = {"nn.LSTM": [3.0, 3.1, 3.2], "auto": [3.15, 3.25, 3.35], "persistent_gpu": [3.5, 3.6, 3.7]}
    assert [losses.SeedRow(small(), "pairs", of_seeds).agrees(name) for name in of_seeds] == [True, True, False]


def test_the_yardstick_multiplies_as_the_models_do() -> None:
    layer: Any = recurrent_layers.make_layer("yardstick", small("tf32"), "cpu")
    exact: Any = recurrent_layers.make_layer("sequential", small("tf32"), "cpu")
    x, state = torch.randn(5, 4, 16), (torch.zeros(2, 4, 16), torch.zeros(2, 4, 16))
    outputs = [module(x, state)[0].detach() for module in (layer, exact)]
    difference = float((outputs[0] - outputs[1]).abs().max())
    assert 1e-5 < difference < 1e-2


def test_a_text_that_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        language_model.main(["--output", str(tmp_path), "--text", str(tmp_path / "none.txt")])
    assert "none.txt" in capsys.readouterr().err


def test_auto_notes_are_read_from_modules_alone() -> None:
    batches = CORPUS.batches(5, 4, 2, CPU)
    assert Training("nn.LSTM", small(), batches, CPU).notes() == ""
    module = Training("auto", small(), batches, CPU)
    module.step()
    assert module.notes().startswith("torch")
    assert isinstance(module.model.recurrent, nn.RNNBase)
