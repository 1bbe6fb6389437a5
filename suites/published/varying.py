"""Layers from their first call on, when shapes vary: this project's modules beside torch.nn's, in fresh processes.

`python -m pytest_ecornn.suites.published.varying --output FOLDER` writes FOLDER/varying.md and FOLDER/varying.json, anew after
every row; --resume goes on after it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from pytest_ecornn.suites.published.varying_parts import scenario_times, single_figures
from pytest_ecornn.suites.published.varying_parts.training_steps import Scenario

_SEED, _DRAWN, _STEPS, _REPEATS = 1, 5, 300, 2
_DETERMINISTIC_SHARE = 10  # steps of a scenario over those of its deterministic runs


def make_scenarios(seed: int = _SEED, count: int = _DRAWN, steps: int = _STEPS) -> list[Scenario]:
    """The fixed scenarios, then `count` drawn ones."""
    scenarios = (*scenario_times.FIXED, *scenario_times.drawn(seed, count))
    return [replace(scenario, steps=steps, seed=seed) for scenario in scenarios]


def make_plan(scenarios: Sequence[Scenario], repeats: int = _REPEATS, device: str = "cuda") -> ReportPlan:
    """The report on these scenarios, of which the first three run deterministically too."""
    measure = partial(scenario_times.measure, scenarios=scenarios, repeats=repeats, device=device)
    fixed = scenarios[: len(scenario_times.FIXED)]
    short = [replace(scenario, steps=max(1, scenario.steps // _DETERMINISTIC_SHARE)) for scenario in fixed]
    parts = {
        **single_figures.make_parts(device, short),
        "scenarios": ReportPart(measure, scenario_times.render, 0.6, row=scenario_times.Row, is_resumable=True),
    }
    order = ("scenarios", *(name for name in parts if name != "scenarios"))
    return ReportPlan("varying", "Layers whose shapes vary on this machine", 1, parts, order, seconds=420.0)


PLAN = make_plan(make_scenarios())


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="varying", add_help=False, allow_abbrev=False)
    add = options.add_argument
    add("--seed", type=int, default=_SEED, help="of drawn scenarios and of all shapes")
    add("--drawn", type=int, default=_DRAWN, metavar="N", help="number of drawn scenarios")
    add("--steps", type=int, default=_STEPS, metavar="N", help="training steps of a process")
    add("--repeats", type=int, default=_REPEATS, metavar="N", help="processes of each arm")
    add("--only", nargs="+", metavar="NAME", help="scenarios whose name contains one of these")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--deadline", dest="seconds", type=float, default=argparse.SUPPRESS, help="the same as --seconds")
    parsed = options.parse_known_args(arguments)[0]
    for name, least in (("drawn", 0), ("steps", 1), ("repeats", 1)):
        if (value := getattr(parsed, name)) < least:
            options.error(f"--{name}: expected at least {least}, got {value}")
    scenarios = make_scenarios(parsed.seed, parsed.drawn, parsed.steps)
    chosen = [scenario for scenario in scenarios if not parsed.only or any(name in str(scenario) for name in parsed.only)]
    if not chosen:
        options.error(f"--only: expected a part of a name of {'; '.join(map(str, scenarios))}, got {' '.join(parsed.only)}")
    return make_plan(chosen, parsed.repeats, parsed.device).main(__doc__, arguments, options)


if __name__ == "__main__":
    raise SystemExit(main())
