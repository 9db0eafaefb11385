"""Turn quantities with units into SI floats, and back into something to read.

Inside the library everything is SI: bytes, seconds, FLOP/s, bytes/s, Hz, one way. A number that comes from
outside carries its unit, spelled as in the table below: `GB` is 1e9 bytes, `GiB` is 2**30, `Gbit` is a bit
and not a byte. What has no unit, or one that can be read two ways (`G`, `gb`, `K`), is refused. Lab 01 uses
it.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

SI = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

UNITS: dict[str, tuple[str, float]] = {
    **{f"{p}B": ("bytes", f) for p, f in {**SI, **BINARY}.items()},
    **{f"{p}B/s": ("bytes_per_s", f) for p, f in {**SI, **BINARY}.items()},
    **{f"{p}bit/s": ("bytes_per_s", f / 8) for p, f in SI.items() if p},
    **{f"{p}FLOP/s": ("flops_per_s", f) for p, f in SI.items()},
    **{f"{p}Hz": ("hz", f) for p, f in SI.items() if p in ("", "k", "M", "G")},
    "s": ("s", 1.0),
    "ms": ("s", 1e-3),
    "us": ("s", 1e-6),
    "ns": ("s", 1e-9),
    "W": ("w", 1.0),
    "year": ("year", 1.0),
    "count": ("count", 1.0),
}
"""Unit -> (dimension, how many SI units it is)."""

QUANTITY = re.compile(r"\s*([-+]?[\d_,.]+(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)\s*")


def to_si(value: float, unit: str, dimension: str | None = None) -> float:
    """Multiply `value` by what its unit is worth.

    Units: `dimension` (bytes, bytes_per_s, flops_per_s, hz, s, w, year, count), where given, must be the
    unit's own.
    Raises: ValueError for an unknown unit, a unit of another dimension, a value that is not finite.
    """
    if unit not in UNITS:
        raise ValueError(
            f"a unit must be one that reads one way; got {repr(unit) if unit else 'none'}. {_suggest(unit)}"
            f"Known: {', '.join(u for u, (kind, _) in UNITS.items() if dimension in (None, kind))}."
        )
    kind, factor = UNITS[unit]
    if dimension is not None and kind != dimension:
        others = ", ".join(u for u, (k, _) in UNITS.items() if k == dimension)
        raise ValueError(
            f"a quantity in {dimension} must have such a unit; got {unit!r} ({kind}). Use {others}."
        )
    if not math.isfinite(value):
        raise ValueError(f"a quantity must be finite; got {value!r} {unit}. Give a number.")
    return float(Decimal(str(value)) * Decimal(str(factor)))  # 66.9 TFLOP/s is 66.9e12 to the last bit


def _suggest(unit: str) -> str:
    near = [u for u in UNITS if u.lower().replace("i", "") == unit.lower().replace("i", "")]
    near += [u for u in UNITS if unit and u in (f"{unit}B", f"{unit}iB")]
    near += [u for u in UNITS if u.lower() == unit.lower().replace("flops", "flop/s")]
    return f"Did you mean {' or '.join(dict.fromkeys(near))}? " if near else ""


def quantity(text: str, dimension: str | None = None) -> float:
    """Read "3.35 TB/s" as 3.35e12.

    Raises: ValueError if there is no unit, or it is not one of `dimension`.
    """
    match = QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f'a quantity must be a number and a unit; got {text!r}. Write "80 GB" or "80 GiB".')
    return to_si(float(match[1].replace(",", "")), match[2], dimension)


def bandwidth(text: str) -> float:
    """Read a network's bandwidth in bytes/s, as `quantity`; "400 Gb/s" and "400 Gbps" are bits, as sold.

    Raises: ValueError as `quantity`.
    """
    return quantity(re.sub(r"([kMGT])b(/s|ps)\s*$", r"\1bit/s", text), "bytes_per_s")


def bytes_of(size: str | float) -> float:
    """Return a size in bytes: a number is bytes already, a text must say its unit ("80 GB", "80 GiB").

    Raises: ValueError for a size without a clear unit, or one that is not positive and finite.
    """
    return positive("size", quantity(size, "bytes") if isinstance(size, str) else size)


def positive(name: str, value: float) -> float:
    """Return `value` if it is a positive finite number.

    Raises: ValueError otherwise; booleans and texts are not numbers here.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive finite number; got {value!r}. Give it in SI units.")
    return value


def show_bytes(num_bytes: float, *, binary: bool = False) -> str:
    """Write a size to three digits: 80e9 is "80 GB", and "74.5 GiB" in binary units."""
    return _show(num_bytes, "B", BINARY if binary else SI)


def show_rate(value: float, unit: str) -> str:
    """Write a rate to three digits: (9.894e14, "FLOP/s") is "989 TFLOP/s"."""
    return _show(value, unit, SI)


def _show(value: float, unit: str, prefixes: dict[str, float]) -> str:
    chosen = "", 1.0
    for prefix, factor in prefixes.items():
        if abs(value) >= factor:
            chosen = prefix, factor
    number = value / chosen[1]
    return f"{number:.0f} {chosen[0]}{unit}" if abs(number) >= 100 else f"{number:.3g} {chosen[0]}{unit}"
