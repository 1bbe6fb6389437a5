"""`python -m pytest_ecornn.nn COMMAND`: what is asked or done before a module runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pytest_ecornn.nn import explain, preparation


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 where a command's words or options are wrong."""
    parser = argparse.ArgumentParser(prog="python -m pytest_ecornn.nn", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    explain.add_command(commands)
    preparation.add_command(commands)
    given = parser.parse_args(arguments)
    return int(given.run(given))


if __name__ == "__main__":
    sys.exit(main())
