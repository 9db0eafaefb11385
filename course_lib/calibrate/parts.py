"""Group what was measured into parts that the step-time model predicts, each from its constants.

A short burst runs before the power limit lowers the clock: matmuls and attention have a level each, how much
faster bursts are than held calls of the same sides. Where none was held it is fitted, near 1.1, the course's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.calibrate.table import ATTENTION, COLLECTIVES, MATMULS, Row
from course_lib.cost.axis_collectives import (
    Machine,
    all_reduce_time_s,
    gather_time_s,
    machine_of,
    send_time_s,
)
from course_lib.cost.cluster import Cluster, Link, Span
from course_lib.cost.constants import STACKS, Array, Calibration
from course_lib.cost.hardware import Accelerator
from course_lib.cost.kernels import attention_time_s, matmul_time_s

SHORTEST_S = 50e-6
"""A matmul or attention below it times its launch."""
USUAL_HEAD = 128
LEVELS = ("matmul", "attention")


@dataclass(frozen=True)
class Part:
    """Hold measurements of one kind, and what predicts them."""

    name: str
    seconds: Array
    predict: Callable[[Calibration], Array]
    level: str = ""
    """Of LEVELS, for short bursts; empty for what is held, and for collectives."""
    faster: float = 0.0
    """How much faster such bursts are than held calls, the median; 0: none was held."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Say where it was measured: GPU, network and stack, which choose the constants."""

    accelerator: Accelerator
    stack: str
    fabric: str
    network_bytes_per_s: float | None = None
    """Of a GPU, between servers; None: what servers of this GPU usually have."""

    def machine(self, per_server: int = 8, ranks: int = 8) -> Machine:
        """Return the machine of the model with servers of so many GPUs.

        Raises: ValueError if collectives were timed and the link's or network's bandwidth is not known.
        """
        acc = self.accelerator
        near = acc.link_bytes_per_s if per_server > 1 else acc.memory_bandwidth_bytes_per_s
        spans = [
            Span(name="server", devices=per_server, link=Link(latency_s=0.0, bandwidth_bytes_per_s=near))
        ]
        if ranks > per_server:
            far = self.network_bytes_per_s or acc.network_bytes_per_s
            link = Link(latency_s=0.0, bandwidth_bytes_per_s=far)
            spans.append(Span(name="cluster", devices=ranks, link=link))
        return machine_of(
            Cluster(name=acc.name, accelerator=acc, spans=tuple(spans), fabric=self.fabric), "bf16"
        )


def parts_of(rows: Sequence[Row], place: Place) -> tuple[list[Part], list[str]]:
    """Return the parts and lines that say what was left out.

    Raises: ValueError for a call faster than the GPU's peak, or so slow that its seconds have another unit.
    """
    _check_speed(rows, place.accelerator)
    kernels = [row for row in rows if row.kind in (*MATMULS, *ATTENTION)]
    long = [row for row in kernels if row.seconds >= SHORTEST_S]
    said = [f"{len(kernels) - len(long)} calls below 50 us left out: they time their launch"]
    said = said if len(long) < len(kernels) else []
    attention, words = _usual_heads(*_one_library([row for row in long if row.kind in ATTENTION]))
    parts = [
        *_matmuls([row for row in long if row.kind in MATMULS], place),
        *_attention(attention, place),
        *_collectives([row for row in rows if row.kind in COLLECTIVES], place),
    ]
    return parts, [*said, *words, *_copies(rows, place)]


def _matmuls(rows: Sequence[Row], place: Place) -> Iterator[Part]:
    machine, faster = place.machine(1, 1) if rows else None, _faster(rows)
    for precision, is_grouped, held in dict.fromkeys(
        (row.precision, row.kind != "matmul", row.held) for row in rows
    ):
        mine = [
            row
            for row in rows
            if (row.precision, row.kind != "matmul", row.held) == (precision, is_grouped, held)
        ]
        sides = [np.array([float(getattr(row, name)) for row in mine]) for name in ("rows", "cols", "inner")]
        groups = np.array([float(row.groups) for row in mine])

        def predict(
            fitted: Calibration,
            s: list[Array] = sides,
            g: Array = groups,
            p: str = precision,
            of: bool = is_grouped,
        ) -> Array:
            assert machine is not None
            return g * matmul_time_s(s[0], s[1], s[2], machine, fitted, p == "fp8", of)

        name = f"{'grouped ' * is_grouped}matmuls, {precision}, {held}"
        yield Part(name, _seconds(mine), predict, *(("matmul", faster) if held == "short" else ()))


def _attention(rows: Sequence[Row], place: Place) -> Iterator[Part]:
    """Forward and backward of the same sides are one measurement: the model has one constant for both."""
    machine, faster = place.machine(1, 1) if rows else None, _faster(rows)
    stack = STACKS.index(place.stack)
    passes: dict[tuple[str | int, ...], list[Row]] = {}
    for row in rows:
        passes.setdefault((row.held, *_call_of(row)[1:]), []).append(row)
    kinds = {key: tuple(sorted({row.kind for row in own}, reverse=True)) for key, own in passes.items()}
    for held, of in dict.fromkeys((key[0], kinds[key]) for key in passes):
        mine = [own for key, own in passes.items() if (key[0], kinds[key]) == (held, of)]
        sides = [
            np.array([float(getattr(own[0], name)) for own in mine])
            for name in ("rows", "cols", "groups", "inner")
        ]

        def predict(fitted: Calibration, s: list[Array] = sides, of: tuple[str, ...] = of) -> Array:
            assert machine is not None
            newer = fitted.at("attention_slowdown", np.array([stack])) if machine.generation[0] > 0 else 1.0
            efficiency = fitted.at("attention_efficiency", np.array([stack])) / newer
            fused = np.full(len(s[0]), True)
            found = attention_time_s(s[0], s[1], s[2], s[3], fused, efficiency, machine, fitted)
            each = {"attention_forward": found.forward, "attention_backward": found.backward}
            return np.asarray(sum(each[kind] for kind in of))

        seconds = np.array([sum({row.kind: row.seconds for row in own}.values()) for own in mine])
        name = f"attention, {' and '.join(kind.partition('_')[2] for kind in of)}, {held}"
        yield Part(name, seconds, predict, *(("attention", faster) if held == "short" else ()))


def _faster(rows: Sequence[Row]) -> float:
    """Return the median of held over short seconds of the same call, 0 where none was held."""
    short = {_call_of(row): row.seconds for row in rows if row.held == "short"}
    held = [(row.seconds, short.get(_call_of(row))) for row in rows if row.held == "sustained"]
    ratios = [seconds / burst for seconds, burst in held if burst]
    return float(np.median(ratios)) if ratios else 0.0


def _call_of(row: Row) -> tuple[str | int, ...]:
    return (row.kind, row.precision, row.groups, row.rows, row.cols, row.inner)


def _one_library(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Keep the rows of the library that was fastest, where several were timed."""
    names = list(dict.fromkeys(row.how for row in rows))
    if len(names) < 2:
        return list(rows), []
    calls = set.intersection(*({(*_call_of(r), r.held) for r in rows if r.how == n} for n in names))
    same = [row for row in rows if (*_call_of(row), row.held) in calls] or rows
    rate = {n: np.mean([np.log(r.flops / r.seconds) for r in same if r.how == n]) for n in names}
    best = max(rate, key=lambda name: rate[name])
    others = ", ".join(
        f"{np.exp(rate[n] - rate[best]):.2f} of it by {n or 'no name'}" for n in names if n != best
    )
    return [row for row in rows if row.how == best], [f"attention of {best or 'no name'} taken; {others}"]


def _usual_heads(rows: Sequence[Row], said: list[str]) -> tuple[list[Row], list[str]]:
    """Keep heads of 128 and more, which the model's constant is of, where there are any."""
    usual = [row for row in rows if row.inner >= USUAL_HEAD]
    smaller = sorted({row.inner for row in rows} - {row.inner for row in usual})
    if not usual or not smaller:
        return list(rows), said
    rate, small = (
        np.exp(
            np.mean(
                [np.log(row.flops / row.seconds) for row in rows if (row.inner >= USUAL_HEAD) is is_usual]
            )
        )
        for is_usual in (True, False)
    )
    sizes = " and ".join(map(str, smaller))
    return usual, [
        *said,
        f"attention with heads of {sizes} left out: it reaches {small / rate:.2f} of the others",
    ]


def _collectives(rows: Sequence[Row], place: Place) -> Iterator[Part]:
    for kind, is_far in dict.fromkeys((row.kind, row.ranks > row.per_server) for row in rows):
        mine = [row for row in rows if (row.kind, row.ranks > row.per_server) == (kind, is_far)]
        machines = [place.machine(row.per_server, row.ranks) for row in mine]
        each = list(zip(mine, machines, strict=True))

        def predict(fitted: Calibration, each: list[tuple[Row, Machine]] = each) -> Array:
            return np.concatenate([_collective_s(row, machine, fitted) for row, machine in each])

        where = "between servers" if is_far else "in a server"
        yield Part(f"{kind}, {where}", _seconds(mine), predict)


def _collective_s(row: Row, machine: Machine, fitted: Calibration) -> Array:
    size, one, full = np.array([float(row.ranks)]), np.ones(1), np.array([float(row.bytes)])
    if row.kind == "send":
        is_far = row.ranks > row.per_server
        step = fitted.at("across_latency_s", machine.fabric) if is_far else fitted["inside_latency_s"]
        return np.asarray(send_time_s(one * (1 if is_far else 0), full, machine, fitted) + step)
    time = all_reduce_time_s if row.kind == "all_reduce" else gather_time_s
    return np.asarray(time(size, one, full, machine, fitted))


def _copies(rows: Sequence[Row], place: Place) -> Iterator[str]:
    best = max((2 * row.bytes / row.seconds for row in rows if row.kind == "copy"), default=0.0)
    if best:
        peak = place.accelerator.memory_bandwidth_bytes_per_s
        yield (
            f"a copy moves {best / 1e12:.2f} TB/s, {100 * best / peak:.0f}% of the memory's; no constant "
            "holds it: what only moves bytes is counted in passes"
        )


def _seconds(rows: Sequence[Row]) -> Array:
    return np.array([row.seconds for row in rows])


def _check_speed(rows: Sequence[Row], acc: Accelerator) -> None:
    for row in rows:
        if row.kind not in (*MATMULS, *ATTENTION):
            continue
        peak, rate = acc.peak_flops_per_s(row.precision), row.flops / row.seconds
        what = f"{row.kind} of {row.groups} x {row.rows:,} x {row.cols:,} x {row.inner:,} in {row.precision}"
        if rate > 1.02 * peak:
            raise ValueError(
                f"a {what} must not exceed the {peak / 1e12:,.0f} TFLOP/s of {acc.name}; got "
                f"{row.seconds:.3g} s, {rate / 1e12:,.0f} TFLOP/s. Give seconds of one call, and the GPU's "
                "own name."
            )
        if rate < 2e-3 * peak and row.flops > 1e11:
            raise ValueError(
                f"a {what} must reach more than 0.2% of the {peak / 1e12:,.0f} TFLOP/s of {acc.name}; got "
                f"{row.seconds:.3g} s, {rate / 1e12:,.2f} TFLOP/s. Give seconds, not milliseconds."
            )
