"""Shows that names alone changed in kernels: `python -m tests.tools.ptx_identity save FILE` before, `compare FILE` after.

Compiles the forms of tests/helpers/kernel_forms.py to PTX, and replaces each symbol in it by its number. FILE holds digests
of the rest for each form, in the order of `VARIANTS`, so a kernel's own name may change too. Exit status 1: PTX differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from multiprocessing import Pool
from pathlib import Path

from tests.helpers.kernel_forms import VARIANTS, Variant, ptx_of, source_of, variants

TRIES = 20
_CONSTANT = re.compile(r"^\.(?:visible |weak )?global\b[^;\n]*?([A-Za-z_$][\w$]*)(?: = [^;\n]*)?;\n", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SYMBOL = re.compile(r"(?<![%.\w$])[A-Za-z_$][\w$]*(?![\w$])")
_DECLARED = re.compile(
    r"\.(?:entry|func|param|shared|global|const|extern|visible|weak)\b[^;{(]*?([A-Za-z_$][\w$]*)\s*[\[;({,)]"
)


def without_names(ptx: str) -> str:
    """The PTX with each declared symbol replaced by a number, in the order of their first use."""
    text = _COMMENT.sub("", ptx)
    uses = Counter(_SYMBOL.findall(text))
    text = _CONSTANT.sub(lambda match: match[0] if uses[match[1]] > 1 else "", text)  # of what a `constexpr` left unread
    declared = {name for name in _DECLARED.findall(text) if not name.startswith("$L")}
    prefixes = tuple(f"{name}_param_" for name in declared)
    numbers: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        name = match[0]
        if name not in declared and not name.startswith(prefixes) and not name.startswith("_Z"):
            return name
        return numbers.setdefault(name, f"symbol{len(numbers)}")

    return _SYMBOL.sub(renamed, text)


def _digest(job: tuple[str, Variant]) -> str:
    name, macros = job
    return hashlib.sha256(without_names(ptx_of(source_of(name), macros)).encode()).hexdigest()[:16]


def _digests(job: tuple[str, Variant]) -> list[str]:
    """Of two compilations, or of many where those differ: NVRTC makes one of several texts of some forms."""
    found = {_digest(job), _digest(job)}
    return sorted(found if len(found) == 1 else found | {_digest(job) for _ in range(TRIES)})


def _differs(pair: tuple[tuple[str, Variant], list[str]]) -> bool:
    job, before = pair
    return all(_digest(job) not in before for _ in range(TRIES))


def jobs() -> list[tuple[str, Variant]]:
    """The forms of all kernels."""
    return [(name, macros) for name in VARIANTS for macros in variants(name)]


def parse_arguments(description: str | None) -> argparse.Namespace:
    """The command line of a tool that saves what it has of all forms in a file, and compares it later."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("action", choices=("save", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def main() -> int:
    given = parse_arguments(__doc__)
    forms = jobs()
    with Pool(given.processes) as pool:
        if given.action == "save":
            given.file.write_text(json.dumps(pool.map(_digests, forms, chunksize=4)))
            print(f"{len(forms)} forms of {len(VARIANTS)} kernels saved")
            return 0
        differ = pool.map(_differs, zip(forms, json.loads(given.file.read_text()), strict=True), chunksize=4)
    changed = Counter(name for (name, _), is_other in zip(forms, differ, strict=True) if is_other)
    print(f"{len(forms)} forms of {len(VARIANTS)} kernels; PTX differs in: {dict(changed) or 'none'}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
