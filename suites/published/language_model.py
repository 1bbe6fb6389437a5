"""EcoRNN's figure 4 on this machine: training throughput of its language models by their recurrent layers, and their losses.

`python -m pytest_ecornn.suites.published.language_model --output FOLDER` writes FOLDER/language_model.md, .json and charts,
anew after every row; --resume goes on after it. `--text FILE` trains on a text in place of drawn words.
Source: EcoRNN, arXiv 1805.08899, figure 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from pytest_ecornn.suites.published.language_model_parts import losses, throughput, training
from pytest_ecornn.suites.published.language_model_parts.training import Corpus

VOCABULARIES = (10_000, 33_278)  # of PTB and of WikiText-2
_WORDS, _PAIRED_WORDS = 200_000, 20  # drawn, and words that a model learns the pairs of in 200 steps


def make_plan(corpora: Sequence[Corpus], device: str = "cuda") -> ReportPlan:
    """The report on these corpora. Losses are of a text where that is given, else of words of which most follow from others."""
    rates = partial(throughput.measure, corpora=corpora, device=device)
    learnt = corpora[0]
    if learnt.source == training.ZIPF:
        learnt = training.pairs(learnt.vocabulary, _WORDS, min(learnt.vocabulary, _PAIRED_WORDS))
    curves = partial(losses.measure_curves, corpus=learnt, device=device)
    seeds = partial(losses.measure_seeds, corpus=learnt, device=device)
    parts = {
        "words": ReportPart(rates, throughput.render, 0.6, throughput.Row, throughput.figures, is_resumable=True),
        "losses": ReportPart(curves, losses.render_curves, 0.3, row=losses.CurveRow, is_resumable=True),
        "seeds": ReportPart(seeds, losses.render_seeds, 0.1, row=losses.SeedRow, is_resumable=True),
    }
    return ReportPlan("language_model", "EcoRNN's language models on this machine", 1, parts, tuple(parts), seconds=540.0)


PLAN = make_plan([training.zipf(vocabulary, _WORDS) for vocabulary in VOCABULARIES])


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(add_help=False)
    help_text = "whose words the models train on; else they are drawn by Zipf's law, of vocabularies of 10,000 and 33,278"
    options.add_argument("--text", type=Path, metavar="FILE", help=help_text)
    text: Path | None = options.parse_known_args(arguments)[0].text
    try:
        plan = make_plan([training.read(text)]) if text else PLAN
    except (OSError, ValueError) as error:
        options.error(str(error))
    return plan.main(__doc__, arguments, options)


if __name__ == "__main__":
    raise SystemExit(main())
