"""Put a plan into words: the best layouts with their terms, why the runner-up lost, flags to take away."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np

from course_lib.cost.tables import rows
from course_lib.planner import remedies
from course_lib.planner.request import Request
from course_lib.planner.search import AXES, RECOMPUTE, RESERVED_BYTES, Counts, Plan, price

EMPTY = {"tp": 1, "cp": 1, "pp": 1, "v": 1, "dp_replicate": 1, "dp_shard": 0, "ep": 1, "zero": 1, "mbs": 1}


def interval() -> tuple[float, float]:
    """Return measured over predicted step time, 10th and 90th percentile over the validated runs."""
    found = {row["quantile"]: float(row["measured_over_predicted"]) for row in rows("step_time_interval.csv")}
    return found["0.1"], found["0.9"]


def row_of(found: Plan, i: int) -> dict[str, Any]:
    """Return one layout as plain data: axes, seconds with their interval, terms, memory by category."""
    low, high = interval()
    step = float(found.step_s[i])
    layout: dict[str, Any] = {axis: int(value) for axis, value in zip(AXES, found.table[i], strict=True)}
    layout["recompute"] = RECOMPUTE[layout["recompute"]]
    memory = {name: float(np.asarray(value)[i]) for name, value in found.memory.by_category().items()}
    return {
        "layout": layout,
        "step_s": step,
        "step_s_interval": [step * low, step * high],
        "tokens_per_s_per_gpu": float(found.tokens_per_s_per_gpu[i]),
        "terms_s": {name: float(value[i]) for name, value in found.time.terms().items()},
        "memory_bytes": memory,
        "warnings": warnings(found.request, layout),
    }


def warnings(request: Request, layout: dict[str, Any]) -> list[str]:
    """Say what is allowed but seldom wise."""
    size, said = request.cluster.server_size, []
    if layout["tp"] > size:
        said.append(f"tp={layout['tp']} leaves the server of {size}: its collectives run over the network")
    if request.config.num_experts:
        said.append("mixtures took up to a third longer than predicted in published runs: docs/accuracy.md")
    if request.precision == "fp8":
        said.append("8-bit runs differed by up to a third from predictions, both ways: docs/accuracy.md")
    return said


def table(found: Plan, most: int = 10) -> str:
    """Return the best layouts as lines of text."""
    names = [*AXES[:-1], "recompute"]
    lines = [" ".join(f"{name:>9}" for name in ["step s", "tok/s/GPU", "GB", *names])]
    for i in range(min(most, len(found.table))):
        row = row_of(found, i)
        gigabytes = (sum(row["memory_bytes"].values()) + RESERVED_BYTES) / 1e9
        cells = [f"{row['step_s']:.3g}", f"{row['tokens_per_s_per_gpu']:.1f}", f"{gigabytes:.1f}"]
        cells += [str(row["layout"][name]) for name in names]
        lines.append(" ".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)


def explain(found: Plan, i: int) -> str:
    """Return what the step of one layout is made of, and its memory."""
    row = row_of(found, i)
    low, high = row["step_s_interval"]
    text = [
        f"step {row['step_s']:.3g} s (on published runs, 8 of 10 lay between {low:.3g} and {high:.3g} s):"
    ]
    for name, seconds in sorted(row["terms_s"].items(), key=lambda item: -item[1]):
        if seconds > 1e-4:
            text.append(f"  {name:<10} {seconds:7.3f} s  {100 * seconds / row['step_s']:5.1f}%")
    total = sum(row["memory_bytes"].values()) + RESERVED_BYTES
    parts = ", ".join(f"{k} {v / 1e9:.1f}" for k, v in row["memory_bytes"].items() if v > 5e7)
    room = found.request.cluster.accelerator.memory_bytes
    fits = "fits" if total <= room else f"does not fit: {(total - room) / 1e9:.1f} GB too much"
    text.append(f"memory {total / 1e9:.1f} GB of {room / 1e9:.0f} ({fits}): {parts} GB, reserved 2.0 GB")
    text += remedies.of(found, i) if total > room else []
    return "\n".join([*text, *(f"warning: {w}" for w in row["warnings"])])


def why_second_lost(found: Plan) -> str:
    """Say which term costs the runner-up most against the winner, or that they cannot be told apart."""
    if len(found.table) < 2:
        return "there is no other layout that fits."
    loses = {name: float(value[1] - value[0]) for name, value in found.time.terms().items()}
    worst = max(loses, key=lambda name: loses[name])
    behind = float(found.step_s[1] / found.step_s[0] - 1)
    close = " That is less than the model can tell apart." if behind < 0.03 else ""
    gain = min(loses, key=lambda name: loses[name])
    back = f"; it gains {-loses[gain]:.3f} s in {gain}" if loses[gain] < -1e-4 else ""
    return f"the runner-up is {100 * behind:.2f}% slower: {loses[worst]:+.3f} s in {worst}{back}.{close}"


def layout_of(text: str, request: Request) -> Counts:
    """Read "tp=8,pp=16,v=7,mbs=1" into a table of one layout; what is not given is 1, dp_shard the rest.

    Raises: ValueError for an unknown axis, axes that do not multiply to the GPUs, a batch they do not divide,
    or stages and heads that the model does not have.
    """
    values: dict[str, int] = {**EMPTY, "recompute": 0}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition("=")
        name = {"dp": "dp_shard", "vp": "v"}.get(name.strip(), name.strip())
        if name not in AXES:
            near = difflib.get_close_matches(name, AXES, n=1)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"a layout must name axes among {', '.join(AXES)}; got {name!r}.{guess}")
        values[name] = RECOMPUTE.index(value) if value in RECOMPUTE else _whole(name, value)
    others = values["tp"] * values["cp"] * values["pp"] * values["dp_replicate"]
    values["dp_shard"] = values["dp_shard"] or max(1, request.num_gpus // others)
    if others * values["dp_shard"] != request.num_gpus:
        raise ValueError(
            f"tp x cp x pp x dp_replicate x dp_shard must be the {request.num_gpus:,} GPUs; got "
            f"{others * values['dp_shard']:,}. Leave dp out and it is what remains."
        )
    ranks = values["dp_replicate"] * values["dp_shard"] * values["mbs"]
    if request.num_sequences % ranks:
        raise ValueError(
            f"data-parallel ranks x micro-batch must divide the {request.num_sequences:,} sequences of a "
            f"step; got {ranks:,}. Change dp, mbs or the tokens of a step."
        )
    _check_model(values, request)
    return np.array([[values[axis] for axis in AXES]], dtype=np.int64)


def _check_model(values: dict[str, int], request: Request) -> None:
    """Refuse more chunks than layers (with both ends counted), and heads that tp does not divide."""
    layers, heads = request.config.num_layers, request.config.num_heads
    chunks = values["pp"] * values["v"]
    if chunks > layers and chunks != layers + 2:
        raise ValueError(
            f"pp x v must be at most the {layers} layers, or {layers + 2} with embedding and head as a layer "
            f"each; got {chunks:,}. Use fewer stages or virtual stages."
        )
    if heads % values["tp"]:
        raise ValueError(f"tp must divide the {heads} heads; got {values['tp']}. Use a power of two.")


def _whole(name: str, text: str) -> int:
    least = 0 if name in ("zero", "recompute") else 1
    if not text.strip().isdigit() or int(text) < least:
        raise ValueError(f"{name} must be a whole number of {least} or more; got {text!r}. Write {name}=1.")
    return int(text)


def priced(text: str, request: Request) -> Plan:
    """Price a layout of the user's own, whether it fits or not."""
    return price(request, layout_of(text, request))


def summary(found: Plan, top: int = 10) -> str:
    """Return the whole answer as text: the table, the winner explained, the runner-up, what was left out."""
    request = found.request
    left = "; ".join(f"{name} {count:,}" for name, count in found.left_out.items() if count)
    return "\n".join(
        [
            f"{request.name} on {request.num_gpus:,} GPUs of {request.cluster.name}: "
            f"{request.seq_len:,} tokens a sequence, {request.num_sequences:,} sequences a step",
            "",
            table(found, top),
            "",
            f"The best, {explain(found, 0)}",
            "",
            f"Against it, {why_second_lost(found)}",
            f"Priced: {len(found.table):,} layouts that fit. Left out: {left or 'none'}.",
        ]
    )
