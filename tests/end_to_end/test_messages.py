"""What a failure says: whose error it is, and the one command that repeats it."""

from __future__ import annotations

import re
import shlex

from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign, only

OPTIONS = ("--ecornn-implementations", "kernels", "--ecornn-case", samples.CASE)
REPLACES = "import secrets; secrets.randbelow = lambda n: 0"


def in_call(line: str) -> str:
    return samples.RIGHT.replace("outputs = []", f"{line}\n            outputs = []", 1)


def command(reason: str) -> list[str]:
    """The arguments of the command that a reason ends with."""
    found = re.search(r"\nagain: pytest (.*)\Z", reason)
    assert found is not None, reason
    return shlex.split(found[1])


SHAPE = "expected a tensor of shape [6, 3, 8], float32, on cpu; got shape"
# What each layer does, how its row's reason goes on behind its name and case, and the flag of the command that repeats it.
FAILURES = {
    "sets": (in_call("torch.manual_seed(3)"), "torch's random state: expected another as before, got another", "verify"),
    "replaces": (in_call(REPLACES), "secrets.randbelow: expected it as before, but it was replaced", "verify"),
    "raises": (samples.RAISES, "expected a result or Unsupported, got RuntimeError at raises.py", "verify"),
    "wrong_shape": (samples.WRONG_SHAPE, f"{SHAPE} [5, 3, 8]", "verify"),
    "wrong_dtype": (samples.WRONG_DTYPE, f"{SHAPE} [6, 3, 8], float64", "verify"),
    "not_finite": (samples.NOT_FINITE, "at [0, 0, 0] expected", "verify"),
    "has_no_state": (samples.NO_STATE, "expected the tuple (output, final_state) of plain tensors, got Tensor", "verify"),
    "remembers": (samples.REMEMBERS, "", "bench"),
}


def test_every_failure_ends_with_the_command_that_repeats_it_and_the_run_goes_on(foreign: Foreign) -> None:
    for name, (text, _, _) in FAILURES.items():
        foreign.write(f"kernels/{name}.py", text)
    foreign.run("--ecornn-bench", *OPTIONS, *only(*FAILURES, "sequential", "torch_cpu"), *QUICK, check=1)
    rows = foreign.rows()
    assert {name.partition("-")[0] for name, row in rows.items() if row["status"] == "failed"} == FAILURES.keys()
    assert rows[f"sequential-{samples.CASE}"]["status"] == "passed"
    assert rows[f"torch_cpu-{samples.CASE}"]["timing"]["against"] == []
    for name, (_, words, flag) in FAILURES.items():
        reason = rows[f"{name}-{samples.CASE}"]["reason"]
        if words:
            begins = rf"{name}( is wrong)? on {samples.CASE}:\s+(output: )?{re.escape(words)}"
            assert re.match(begins, reason), reason
        assert f"--ecornn-{flag}" in command(reason)
    reason = rows[f"remembers-{samples.CASE}"]["reason"]
    assert reason.startswith("a timed call returned a wrong result\nremembers is wrong")
    assert reason.count("\n  output") == 1
    for name in ("sets", "replaces", "remembers"):
        foreign.run(*command(rows[f"{name}-{samples.CASE}"]["reason"]), *QUICK[2:], check=1)
        assert foreign.rows()[f"{name}-{samples.CASE}"]["status"] == "failed"


# The first row that asks for ceilings finds no clock; from then on the baseline breaks.
NO_CLOCK = """
from pytest_ecornn.measurement import roofline
measure, calls = roofline.measure_ceilings, []

def measure_ceilings(dtypes, device):
    calls.append(dtypes)
    if len(calls) == 1:
        open("no-clock", "w").close()
        raise OSError("no clock")
    return measure(dtypes, device)

roofline.measure_ceilings = measure_ceilings
"""
BREAKS = in_call("import os\n            if os.path.exists('no-clock'): raise RuntimeError('worn out')")


def test_errors_of_the_harness_and_of_a_baseline_are_not_those_of_the_implementation(foreign: Foreign) -> None:
    foreign.write("conftest.py", NO_CLOCK)
    foreign.write("kernels/breaks.py", BREAKS)
    foreign.write("kernels/a.py", samples.RIGHT)
    foreign.write("kernels/b.py", samples.RIGHT)
    foreign.run("--ecornn-bench", *only("a", "b"), *OPTIONS, "--ecornn-baseline", "breaks", *QUICK, check=1)
    reasons = {name[0]: row["reason"] for name, row in foreign.rows().items()}
    harness = "not proven, by an error of the harness, not the implementation: OSError at measured_ceilings.py:"
    assert reasons["a"].startswith(f"a on {samples.CASE}: {harness}")
    assert reasons["b"].startswith(f"b on {samples.CASE}: its baseline breaks raised RuntimeError at breaks.py:")
    assert "--ecornn-baseline breaks" in reasons["b"]


def test_node_ids_outside_the_repository_are_shown_and_taken_back(foreign: Foreign) -> None:
    foreign.write("kernels/wrong.py", samples.WRONG)
    options = ["--ecornn-verify", *OPTIONS, "--ecornn-only", "wrong"]
    done = foreign.run(*options, "-k", "fixed", "--junitxml", "junit.xml", check=1)
    node = f"pytest_ecornn/suites/test_equivalence.py::test_fixed_case[wrong-{samples.CASE}]"
    assert f"\nFAILED {node}" in done.stdout
    (case,) = foreign.junit().values()
    assert case.get("classname") == "pytest_ecornn.suites.test_equivalence"
    again = foreign.run(*options, node, check=1)
    assert "1 row: 1 failed" in again.stdout


# Right on two of three builds; wrong on T 6 once T 4 has run; unable to say whether it runs a ragged case.
VARIES = (
    in_call("if number % 3 == 1: x = 2 * x")
    .replace("        def layer(", "        BUILDS.append(1)\n        number = len(BUILDS)\n        def layer(", 1)
    .replace("class Right", "BUILDS = []\n\nclass Right")
)
CARRIES = in_call("SEEN.add(case.steps); x = 2 * x if case.steps == 6 and 4 in SEEN else x").replace(
    "class Right", "SEEN = set()\n\nclass Right"
)
ASKS_AMISS = samples.RIGHT.replace(
    "        if case.cell", "        if case.ragged: raise ValueError('ragged')\n        if case.cell", 1
)


def test_a_drawn_failure_fails_again_and_names_its_case_where_results_vary_or_a_refusal_raises(foreign: Foreign) -> None:
    foreign.write("kernels/varies.py", VARIES)
    foreign.write("kernels/asks_amiss.py", ASKS_AMISS)
    foreign.write("kernels/wrong.py", samples.WRONG)
    selected = [*only("varies", "asks_amiss", "wrong"), "--ecornn-profile", "quick"]
    selected += ["-k", "drawn and lstm-float32 and not minlstm"]
    foreign.run("--ecornn-verify", "--ecornn-implementations", "kernels", *selected, *QUICK, check=1)
    reasons = {row["implementation"]: row["reason"] for row in foreign.rows().values()}
    varies = re.match(r"varies on (\S+): results vary: \d of 4 runs failed\nvaries is wrong on (\S+):\n", reasons["varies"])
    refusal = re.match(r"asks_amiss on (\S+): expected a result or Unsupported, got ValueError at ", reasons["asks_amiss"])
    assert varies is not None, reasons["varies"]
    assert refusal is not None, reasons["asks_amiss"]
    assert varies[1] == varies[2]
    assert "ragged" in refusal[1]
    assert [varies[1], refusal[1]] == [command(reasons[name])[4] for name in ("varies", "asks_amiss")]
    again = foreign.run(*command(reasons["wrong"]), "-k", "fixed", check=1)  # a property of it may fail too
    assert "1 failed" in again.stdout


def test_the_command_of_a_state_that_another_case_left_has_that_case(foreign: Foreign) -> None:
    foreign.write("kernels/carries.py", CARRIES)
    cases = [f"lstm-T{steps}-B3-H8-float32" for steps in (4, 5, 6)]
    named = [argument for case in cases for argument in ("--ecornn-case", case)]
    foreign.run("--ecornn-bench", "--ecornn-implementations", "kernels", "--ecornn-only", "carries", *named, *QUICK, check=1)
    reason = foreign.rows()[f"carries-{cases[2]}"]["reason"]
    assert command(reason)[2:7] == ["carries", "--ecornn-case", cases[0], "--ecornn-case", cases[2]]
    foreign.run(*command(reason), "-k", "fixed", check=1)
    assert [foreign.rows()[f"carries-{cases[number]}"]["status"] for number in (0, 2)] == ["passed", "failed"]
