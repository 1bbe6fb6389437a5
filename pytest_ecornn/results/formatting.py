"""Numbers and foreign text as people read them: three digits, a unit that fits, and nothing that a terminal would obey."""

from __future__ import annotations

from math import floor, isfinite, log10

_TIMES = ((1.0, "us"), (1e3, "ms"), (1e6, "s"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_MAX_BOUND = 1000  # of a ratio that is shown: few pairs on a noisy machine bound it by any number


def significant(value: float, digits: int = 3) -> str:
    """`value` to that many digits, without an exponent."""
    return f"{value:,.{_decimals(value, digits)}f}" if isfinite(value) else str(value)


def _decimals(value: float, digits: int) -> int:
    if value == 0 or not isfinite(value):
        return 0
    rounded = abs(float(f"{value:.{digits - 1}e}"))  # 9.996 is written as 10.0
    return max(0, digits - 1 - floor(log10(rounded)))


def _time_unit(time_us: float) -> tuple[float, str]:
    rounded = float(f"{time_us:.2e}") if isfinite(time_us) else 0.0
    return next((unit for unit in reversed(_TIMES) if rounded >= unit[0]), _TIMES[0])


def duration(time_us: float) -> str:
    scale, unit = _time_unit(time_us)
    return f"{significant(time_us / scale)} {unit}"


def duration_interval(time_us: float, low_us: float, high_us: float) -> str:
    """Formats all three times in the unit and to the digits of the first."""
    scale, unit = _time_unit(time_us)
    decimals = _decimals(time_us / scale, 3)
    low, high = (f"{value / scale:,.{decimals}f}" for value in (low_us, high_us))
    return f"{significant(time_us / scale)} {unit} [{low}, {high}]"


def ratio_interval(ratio: float, low: float, high: float) -> str:
    """A ratio and its interval: close to 1 a digit more, lest one that ends below 1 be shown as ending there.

    An upper bound over 1,000 and over ten times the ratio is shown as over that.
    """
    is_close = any(0.9 < value < 1.1 for value in (ratio, low, high))
    decimals = 3 if is_close else min(2, _decimals(ratio, 3)) if ratio >= 0.1 else _decimals(ratio, 2)
    middle, left, right = (f"{value:,.{decimals}f}" for value in (ratio, low, high))
    if isfinite(high) and high > (most := max(_MAX_BOUND, 10 * ratio)):
        right = f">{most:,.0f}"
    return f"{middle} [{left}, {right}]"


def percent(share: float) -> str:
    if not isfinite(share):
        return str(share)
    return f"{significant(100 * share, 2 if abs(share) < 1 else 3)} %" if share else "0 %"


def limit_fraction(share: float) -> str:
    """An error as a share of its limit."""
    return f"{share:.2f}" if share < 1000 else f"{share:.1e}"


def relative_error(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


def size(count: float) -> str:
    """Bytes, as powers of 1024."""
    power = 0
    while abs(count) >= 1024 and power < len(_SIZES) - 1:
        count, power = count / 1024, power + 1
    return f"{significant(count) if power else format(count, '.0f')} {_SIZES[power]}"


def printable(text: object) -> str:
    """Control characters, lone surrogates and the like as escapes; lines are kept."""
    lines = str(text).replace("\r\n", "\n").expandtabs(4).split("\n")
    return "\n".join("".join(one if one.isprintable() else ascii(one)[1:-1] for one in line) for line in lines)


def one_line(text: object, limit: int = 0) -> str:
    """`printable` with all white space as single spaces, cut to `limit` characters if given."""
    line = printable(" ".join(str(text).split()))
    return line if not limit or len(line) <= limit else line[: limit - 3] + "..."


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
