"""Verdicts on hosts of which all is known: their speed comes in spells, or a candidate slows its baseline."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.helpers import wandering_host
from tests.helpers.wandering_host import Host

BUDGET, RUNS = 8.0, 20


def quiet(seed: int, noise: float = 0.03) -> Host:
    return Host(seed, 1.0, 1.0, noise=noise)


def verdicts(runs: int, ratio: float, spell: float, **slowed: Any) -> Counter[str]:
    hosts = (Host(seed, spell=spell) for seed in range(runs))
    return Counter(wandering_host.compared(host, ratio, BUDGET, **slowed).verdict for host in hosts)


@pytest.mark.parametrize("spell", [0.01, 0.05, 0.3, 2.0])
@pytest.mark.parametrize(("ratio", "expected"), [(0.9, "faster"), (1.0, "same"), (1.12, "slower")])
def test_ratios_converge_where_calls_wander_from_1_4_to_2_7_ms(spell: float, ratio: float, expected: str) -> None:
    found = verdicts(RUNS, ratio, spell, is_probed=False)
    assert found[expected] == RUNS, found


@pytest.mark.parametrize("spell", [0.01, 0.3, 2.0])
def test_what_differs_by_more_than_the_host_wanders_is_decided_whatever_the_doubts(spell: float) -> None:
    assert verdicts(RUNS, 0.007, spell)["faster"] == RUNS
    assert verdicts(RUNS, 0.4, spell)["faster"] == RUNS


def test_pairs_are_independent_though_neighbours_are_alike() -> None:
    """Blocks of a spell that lasts for several of them: in a fixed order some 3 in 100 equal times were told apart."""
    found = verdicts(400, 1.0, 0.02, is_probed=False)
    assert found["faster"] + found["slower"] <= 4, found


@pytest.mark.parametrize("spell", [0.01, 0.3])
def test_equal_times_are_the_same_or_unclear(spell: float) -> None:
    found = verdicts(40, 1.0, spell)
    assert found["faster"] + found["slower"] == 0, found


@pytest.mark.parametrize("noise", [0.01, 0.05])
@pytest.mark.parametrize("kind", ["for_good", "by_turns"])
@pytest.mark.parametrize("ratio", [0.97, 1.0])
def test_no_faster_comes_of_a_baseline_that_the_candidate_slows(kind: str, ratio: float, noise: float) -> None:
    """By 1.1 to 3 times, 40 of them each."""
    factors = [1.1 * (3 / 1.1) ** (number / 39) for number in range(40)]
    found = [
        wandering_host.compared(quiet(seed, noise), ratio, BUDGET, **{kind: factor}) for seed, factor in enumerate(factors)
    ]
    assert [(one.ratio, one.doubt) for one in found if one.verdict == "faster"] == []
    assert all(one.doubts for one in found)


def test_what_is_faster_than_the_slowed_baseline_by_more_stays_faster() -> None:
    found = [wandering_host.compared(quiet(seed), 0.5, BUDGET, for_good=1.5) for seed in range(RUNS)]
    assert {one.verdict for one in found} == {"faster"}
    assert all(0.5 < one.high < 0.6 for one in found)
