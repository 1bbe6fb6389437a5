"""Named sets of cases: smoke (seconds), edge (awkward lengths), seed (published shapes), full (everything), and CSV files.

A file has a line for each case, or for each published time of it. Those in `sets` hold the problems of published results.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ecornn.cases.sweeps import expand_sweep
from pytest_ecornn.contract import DTYPES, MODES, Case, cells
from pytest_ecornn.results.rows import PublishedTime

SUFFIX = ".csv"
_COLUMNS = ("case", "label", "source", "published_us", "published_on")
_FOLDER = Path(__file__).parent / "sets"


class Origin(NamedTuple):
    """Where a case comes from: its label there, the source, and the times published of it."""

    label: str = ""
    source: str = ""
    published: tuple[PublishedTime, ...] = ()

    def __add__(self, other: Origin) -> Origin:  # type: ignore[override]
        """Both, each text once."""
        label, source = ("; ".join(dict.fromkeys(filter(None, pair))) for pair in zip(self[:2], other[:2], strict=True))
        return Origin(label, source, self.published + other.published)


def _both_modes(**fields: object) -> Iterator[Case]:
    for mode in MODES:
        yield Case(mode=mode, **fields)  # type: ignore[arg-type]


def _smoke() -> Iterator[Case]:
    """Language-model and scan shapes, each small enough for a loop in Python to be timed in a second."""
    yield Case(cell="lstm", layers=2, batch=32, hidden_size=200, steps=35)
    yield Case(cell="lstm", batch=64, hidden_size=512, steps=4)
    yield Case(cell="lstm", batch=16, hidden_size=128, steps=35, mode="training")
    yield from _both_modes(cell="gru", batch=16, hidden_size=128, steps=35, has_state=True)
    yield Case(cell="rnn_tanh", batch=16, hidden_size=256, steps=35, ragged=True)
    yield Case(cell="rnn_relu", batch=16, hidden_size=128, steps=35, bidirectional=True)
    for dtype in ("float32", "bfloat16"):
        yield Case(cell="mingru", batch=8, hidden_size=256, steps=256, batch_first=True, projected=True, dtype=dtype)
    yield Case(cell="mingru", batch=8, hidden_size=256, steps=128, batch_first=True, mode="training")
    yield Case(cell="mingru_positive", batch=8, hidden_size=128, steps=256, batch_first=True)
    yield Case(cell="minlstm", batch=8, hidden_size=256, steps=256, batch_first=True, projected=True)
    yield Case(cell="minlstm", batch=8, hidden_size=256, steps=128, projected=True, mode="training")
    yield Case(cell="minlstm_positive", batch=8, hidden_size=128, steps=128, has_state=True, ragged=True)
    yield Case(cell="mingru", batch=8, hidden_size=128, steps=128, batch_first=True, resets=True, mode="training")


def _edge() -> Iterator[Case]:
    """Sizes at which kernels break: one step, one sequence, one channel, primes, very long sequences."""
    for cell in ("rnn_tanh", "lstm", "gru", "mingru", "minlstm"):
        yield from _both_modes(cell=cell, steps=1, batch=1, hidden_size=1, has_state=True)
        yield from _both_modes(cell=cell, steps=3, batch=5, hidden_size=97, input_size=61, has_state=True, ragged=True)
        yield from _both_modes(cell=cell, steps=67, batch=3, hidden_size=33, bidirectional=True, has_state=True, resets=True)
    for cell in ("rnn_tanh", "rnn_relu", "lstm", "gru"):
        yield Case(cell=cell, steps=1_031, batch=3, hidden_size=33, mode="training")
    for cell in ("mingru", "mingru_positive", "minlstm", "minlstm_positive"):
        yield Case(cell=cell, steps=65_537, batch=1, hidden_size=64, batch_first=True, projected=True)
        yield Case(cell=cell, steps=4_099, batch=2, hidden_size=17, projected=True, mode="training", contents="near_one")
        yield Case(cell=cell, steps=4_099, batch=2, hidden_size=18, projected=True, mode="training", resets=True)


def _seed() -> Iterator[Case]:
    """The shapes of the published results: EcoRNN's language models, sparse persistent RNNs, minGRU and minLSTM over length.

    What cuDNN runs comes first: a report on a GPU begins so.

    The minGRU paper gives no shapes beside the length; 8 sequences of 256 channels stand in, 1 beyond 4,096 steps.
    """
    for layers, batch, hidden in ((2, 32, 650), (2, 32, 200), (2, 20, 1500), (1, 64, 512)):
        yield from _both_modes(cell="lstm", layers=layers, batch=batch, hidden_size=hidden, steps=35)
    for cell in ("rnn_tanh", "lstm", "gru"):
        yield Case(cell=cell, steps=32, batch=4, hidden_size=2304, density=0.3)
    for cell, steps in product(("mingru", "minlstm"), (256, 1024, 4096, 16_384, 65_536)):
        batch = 8 if steps <= 4096 else 1
        yield from _both_modes(cell=cell, steps=steps, batch=batch, hidden_size=256, batch_first=True, projected=True)


def _full() -> Iterator[Case]:
    """Every cell over lengths, batches, widths, dtypes and modes."""
    yield from _smoke()
    yield from _edge()
    yield from _seed()
    built_in = ("rnn_tanh", "rnn_relu", "lstm", "gru", "mingru", "mingru_positive", "minlstm", "minlstm_positive")
    shapes = product(built_in, (16, 128, 1024), (1, 8, 64), (64, 200, 256, 512, 650, 1024), DTYPES, MODES)
    for cell, steps, batch, hidden, dtype, mode in shapes:
        yield Case(cell=cell, steps=steps, batch=batch, hidden_size=hidden, dtype=dtype, mode=mode)


_BUILT_IN = {"smoke": _smoke, "edge": _edge, "seed": _seed, "full": _full}


def case_set(name: str, files: Iterable[Path] = ()) -> dict[Case, Origin]:
    """The cases of a set with their origins. name: a built-in set's, a file's without .csv, or the path of any CSV file.

    files: of sets that others have registered. Raises ValueError, in one line, naming the sets that exist or the file's line.
    """
    if name.endswith(SUFFIX):
        return _read(Path(name))
    paths: dict[str, Path] = {}
    for path in (*sorted(_FOLDER.glob(f"*{SUFFIX}")), *files):
        if path.stem in _BUILT_IN or paths.setdefault(path.stem, path) != path:
            raise ValueError(f"{path}: there is a case set named {path.stem!r} already; rename the file")
    if name in paths:
        return _read(paths[name])
    if name not in _BUILT_IN:
        known = ", ".join([*_BUILT_IN, *paths])
        raise ValueError(f"unknown case set {name!r} (a file's name ends in {SUFFIX}): expected one of {known}")
    return dict.fromkeys(_BUILT_IN[name](), Origin())


def _read(path: Path) -> dict[Case, Origin]:
    origins: dict[Case, Origin] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file, restkey="", restval="")
            columns = lines.fieldnames or ()
            if "case" not in columns or not set(columns) <= {*_COLUMNS}:
                raise ValueError(f"line 1: expected case and any of {', '.join(_COLUMNS[1:])}, got {', '.join(columns)!r}")
            for line in lines:
                try:
                    cases, origin = _parse(line)
                except ValueError as error:
                    raise ValueError(f"line {lines.line_num}: {error}") from error
                for case in cases:
                    origins[case] = origins.get(case, Origin()) + origin
    except OSError as error:
        raise ValueError(f"case set {path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, csv.Error) as error:
        raise ValueError(f"case set {path}, {error}") from error
    if not origins:
        raise ValueError(f"case set {path}: expected a line for each case, got none")
    return origins


def _parse(line: Mapping[str, Any]) -> tuple[list[Case], Origin]:
    """A line of a file. Raises ValueError for what no case or no time can be read from."""
    if "" in line:
        raise ValueError(f"expected no more values than columns, got also {', '.join(line[''])!r}")
    case, label, source, published_us, system = (line.get(name, "").strip() for name in _COLUMNS)
    parsed = [Case.parse(one) for one in expand_sweep(case)]
    for one in parsed:
        cells.check(one)
    try:
        time_us = float(published_us or "nan")
    except ValueError:
        time_us = -inf
    if not (0 < time_us < inf or published_us == system == ""):
        raise ValueError(f"published_us: expected microseconds over 0, got {published_us!r}")
    return parsed, Origin(label, source, (PublishedTime(time_us, system),) if published_us else ())
