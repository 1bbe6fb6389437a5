"""Registers, spills and code of kernels before a change and after it.

`python -m tests.tools.kernel_resources save FILE` before, `compare FILE` after. Compiles the forms of
tests/helpers/kernel_forms.py to machine code. Prints for each kernel the least and the most change of a form.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import tempfile
from multiprocessing import Pool
from typing import NamedTuple

from pytest_ecornn.implementations._cuda import compile as compiler
from tests.helpers.kernel_forms import MEASURED, VARIANTS, Variant, source_of
from tests.tools.ptx_identity import jobs, parse_arguments


class Resources(NamedTuple):
    """Registers of a thread, bytes that it spills, and bytes of machine code."""

    registers: int
    spilled: int
    code: int


def code_bytes(elf: bytes) -> int:
    """Bytes of the sections of an ELF file that hold machine code."""
    (table,), (size, count, names) = struct.unpack_from("<Q", elf, 0x28), struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + number * size) for number in range(count)]
    names_at = sections[names][4]
    return sum(section[5] for section in sections if elf.startswith(b".text.", names_at + section[0]))


def resources_of_log(log: str, code: int) -> Resources:
    """Reads ptxas's verbose log. Raises ValueError for a log without registers."""
    registers = re.findall(r"Used (\d+) registers", log)
    if not registers:
        raise ValueError(f"expected the registers in ptxas's log, got {log!r}")
    return Resources(int(registers[-1]), max(map(int, re.findall(r"(\d+) bytes spill", log)), default=0), code)


def _resources(job: tuple[str, Variant]) -> Resources:
    name, macros = job
    compiled = compiler.compile_source(source_of(name), macros, MEASURED)
    return resources_of_log(compiled.log, code_bytes(compiled.path.read_bytes()))


def change(name: str, before: list[Resources], after: list[Resources]) -> str:
    """A line of the differences of a kernel's forms."""
    of_each = zip(before, after, strict=True)
    differences = [(new.registers - old.registers, new.spilled - old.spilled, new.code / old.code - 1) for old, new in of_each]
    registers, spilled, code = ((min(one), max(one)) for one in zip(*differences, strict=True))
    return (
        f"{name} ({len(before)} forms): registers {registers[0]:+d} to {registers[1]:+d}, spilled bytes {spilled[0]:+d} to "
        f"{spilled[1]:+d}, code {code[0]:+.1%} to {code[1]:+.1%}"
    )


def main() -> int:
    given = parse_arguments(__doc__)
    forms = jobs()
    with tempfile.TemporaryDirectory() as folder:  # what is cached has no log
        os.environ |= {"ECORNN_CACHE_DIR": folder, "CUDA_CACHE_DISABLE": "1"}
        with Pool(given.processes) as pool:
            found = pool.map(_resources, forms, chunksize=2)
    if given.action == "save":
        given.file.write_text(json.dumps([[*form, resources] for form, resources in zip(forms, found, strict=True)]))
        print(f"{len(forms)} forms of {len(VARIANTS)} kernels saved")
        return 0
    read = json.loads(given.file.read_text())
    if [(name, tuple(map(tuple, macros))) for name, macros, _ in read] != forms:
        raise SystemExit(f"expected the {len(forms)} forms of this checkout in {given.file}, got {len(read)}, or others")
    saved = [Resources(*resources) for *_, resources in read]
    for name in VARIANTS:
        of_kernel = [number for number, (kernel, _) in enumerate(forms) if kernel == name]
        print(change(name, [saved[number] for number in of_kernel], [found[number] for number in of_kernel]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
