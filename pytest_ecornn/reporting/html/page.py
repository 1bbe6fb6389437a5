"""What all pages share: templates that escape, style and script inlined, and a policy that runs nothing else."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from pytest_ecornn.results import formatting


@cache
def asset(package: str, name: str) -> str:
    """Returns the text of a file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


@cache
def template(package: str, name: str) -> Any:
    """Returns a template of a package, which may extend others of it. What it is given is escaped."""
    loader = FunctionLoader(lambda other: asset(package, other))
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["printable"] = formatting.printable
    return environment.get_template(name)


def render(package: str, name: str, style: str, scripts: Sequence[str], **values: Any) -> str:
    """Returns the page of a template with its style and scripts, which its content security policy names by hash."""
    hashes = {"style_hash": _csp_hash(style), "script_hashes": " ".join(map(_csp_hash, scripts))}
    page: str = template(package, name).render(style=style, scripts=scripts, **hashes, **values)
    return page


def script_json(data: Any) -> Markup:
    """JSON that may stand in a script element: it holds nothing that ends one."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _csp_hash(text: str) -> str:
    """The source that a content security policy names an inline script or style by."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
