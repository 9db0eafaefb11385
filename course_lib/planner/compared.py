"""Put two plans side by side: seconds by term, memory by category, the whole run, and their ratio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course_lib.planner import report
from course_lib.planner.asked import Asked
from course_lib.planner.costs import short
from course_lib.planner.search import Plan, plan

Side = tuple[Plan, dict[str, Any]]


def compared(asked: Asked, first: str, second: str) -> tuple[Side, Side]:
    """Price both sides of `--compare`.

    A text changes options, names a layout, or both: with an axis it is that layout, as `--explain` reads it,
    else the best that fits.

    Raises: ValueError for a text that cannot be read, or a request that has no layout.
    """
    return _side(asked, first), _side(asked, second)


def _side(asked: Asked, text: str) -> Side:
    changed, axes = asked.changed(text)
    request = changed.request()
    found = report.priced(axes, request) if axes else plan(request)
    return found, report.row_of(found, 0)


def text_of(sides: tuple[Side, Side]) -> str:
    """Return both as a table of at most 80 columns, and which is faster, in which term most."""
    heads = [
        line
        for name, (found, row) in zip("AB", sides, strict=True)
        for line in (f"{name}: {_request(found)}", f"   {report.words(row['layout'])}")
    ]
    notes = [
        f"warning: {name}: {said}"
        for name, (found, row) in zip("AB", sides, strict=True)
        for said in [*report.too_large(found, 0), *row["warnings"]]
    ]
    head = f"{'':<20}{'A':>17}{'B':>17}{'B - A':>17}{'B / A':>9}"
    rows = [_line(*row) for row in _rows(sides) if max(row[1:]) >= 5e-4]
    return "\n".join([*heads, "", head, *rows, "", _verdict(sides), *notes])


def _request(found: Plan) -> str:
    asked = found.request
    return (
        f"{asked.name}, {asked.num_gpus:,} GPUs of {asked.cluster.name}, {asked.precision}, "
        f"{asked.num_sequences:,} x {asked.seq_len:,} tokens"
    )


def _rows(sides: tuple[Side, Side]) -> Iterator[tuple[str, float, float]]:
    (_, a), (_, b) = sides
    yield "step, s", a["step_s"], b["step_s"]
    for name in sorted(a["terms_s"], key=lambda name: -max(a["terms_s"][name], b["terms_s"][name])):
        yield f"  {name}", a["terms_s"][name], b["terms_s"][name]
    yield "tokens/s per GPU", a["tokens_per_s_per_gpu"], b["tokens_per_s_per_gpu"]
    yield "TFLOP/s per GPU", a["flops_per_s_per_gpu"] / 1e12, b["flops_per_s_per_gpu"] / 1e12
    totals = [report.total_bytes(row) / 1e9 for _, row in sides]
    yield "memory, GB", totals[0], totals[1]
    for name, size in a["memory_bytes"].items():
        yield f"  {name}", size / 1e9, b["memory_bytes"][name] / 1e9
    for name, key in (("days", "days"), ("GPU hours", "gpu_hours"), ("cost", "cost")):
        if a["run"] and b["run"]:
            yield name, a["run"][key], b["run"][key]


def _line(name: str, a: float, b: float) -> str:
    ratio = f"{b / a:.3f}" if a > 5e-4 else "-"
    return f"{name:<20}{_number(a):>17}{_number(b):>17}{_number(b - a):>17}{ratio:>9}"


def _number(value: float) -> str:
    if abs(value) >= 1e6:
        return short(value)
    digits = 3 if abs(value) < 100 else 1 if abs(value) < 1000 else 0
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # without the sign of -0.0


def _verdict(sides: tuple[Side, Side]) -> str:
    """Say which trains a token faster on all its GPUs, and which term differs most."""
    (first, a), (second, b) = sides
    rates = [found.request.tokens_per_step / row["step_s"] for found, row in sides]
    faster = rates[1] / rates[0] - 1
    per_token = first.request.tokens_per_step / second.request.tokens_per_step
    differ = {name: abs(b["terms_s"][name] * per_token - seconds) for name, seconds in a["terms_s"].items()}
    most = max(differ, key=lambda name: differ[name])
    close = ", less than the model can tell apart" if abs(faster) < report.CLOSE else ""
    if differ[most] < 1e-9:
        return "A and B are the same."
    word = "more" if faster >= 0 else "fewer"
    return (
        f"B trains {abs(100 * faster):.1f}% {word} tokens per second than A{close}; "
        f'the term that differs most is "{most}".'
    )
