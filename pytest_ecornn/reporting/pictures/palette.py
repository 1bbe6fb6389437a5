"""Colours of all pictures, each for a light and for a dark page, and the style sheet that picks one."""

from __future__ import annotations

from collections.abc import Iterable

# Behind texts.
BACKGROUNDS = {
    "page": ("#ffffff", "#0d1117"),
    "band": ("#f1f3f5", "#171c23"),
    "slower-half": ("#fdf1f1", "#221417"),
    "wait": ("#fdf3d3", "#322a10"),
    "storage": ("#e9edf1", "#21272f"),
    "block-1": ("#e3ebf6", "#14233a"),
    "block-2": ("#ece6f4", "#261d36"),
    "block-3": ("#e2f0e4", "#12291a"),
    "block-4": ("#f4ecdf", "#2e2414"),
}
# Of texts and of all that a reader must tell apart: each has a contrast of at least 4.5 with every background.
INKS = {
    "ink": ("#1f2328", "#e6edf3"),
    "weak": ("#59636e", "#9ba3ad"),
    "red": ("#be1e28", "#ff8a80"),
    "green": ("#11672b", "#56c271"),
    "ochre": ("#835500", "#dba93a"),
    "blue": ("#1450b4", "#79b8ff"),
    "purple": ("#783496", "#cf9ff0"),
    "teal": ("#0e646d", "#4fc3cf"),
}
LINES = {"grid": ("#d8dce0", "#30363d")}
SERIES = ("ink", "red", "green", "ochre", "blue", "purple", "teal", "weak")  # of lines and bars, by their number
_COLOURS = {**BACKGROUNDS, **INKS, **LINES}


def series_colour(number: int) -> str:
    """Returns the colour of a line or bar by its number; after the last, they begin anew."""
    return SERIES[number % len(SERIES)]


def fill_class(name: str) -> str:
    """Returns the class of what is filled with a colour."""
    return f"fill-{_known(name)}"


def stroke_class(name: str) -> str:
    """Returns the class of what is stroked with a colour."""
    return f"stroke-{_known(name)}"


def style_sheet(classes: Iterable[str] | None = None) -> str:
    """Returns the rules of these classes, or of all, light, and dark where the reader prefers that."""
    all_classes = [make(name) for make in (fill_class, stroke_class) for name in _COLOURS]
    wanted = all_classes if classes is None else [one for one in all_classes if one in set(classes)]
    light, dark = (" ".join(_rule(one, scheme) for one in wanted) for scheme in (0, 1))
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n"


def _rule(class_name: str, scheme: int) -> str:
    attribute, _, name = class_name.partition("-")
    return f".{class_name} {{ {attribute}: {_COLOURS[name][scheme]} }}"


def _known(name: str) -> str:
    if name not in _COLOURS:
        raise ValueError(f"expected one of the colours {', '.join(_COLOURS)}, got {name!r}")
    return name
