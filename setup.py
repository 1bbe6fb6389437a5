"""The packages and their folders: implementations/ and suites/ are packages within pytest_ecornn once they are installed.

Everything else is in pyproject.toml, which cannot give a folder found by a pattern another name. An editable install is the
clone's path alone: pytest_ecornn/__init__.py finds both folders there.
"""

import sys

from setuptools import find_namespace_packages, setup

IS_EDITABLE = "editable_wheel" in sys.argv
FOLDERS = {} if IS_EDITABLE else {f"pytest_ecornn.{name}": name for name in ("implementations", "suites")}

setup(
    packages=[
        *find_namespace_packages(include=["pytest_ecornn*"]),
        *FOLDERS,
        *(f"{package}.{name}" for package, folder in FOLDERS.items() for name in find_namespace_packages(folder)),
    ],
    package_dir={"": ".", **FOLDERS},
)
