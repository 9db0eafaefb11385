"""What must hold of a training script that ran under torchrun, and what may be wrong with it in words.

The training is repeated in one process on the samples that the processes say they took. So a wrong sampler
costs only the part "order".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from course_grader.expected.script_hints import hints
from course_grader.expected.torchrun_script import (
    BATCH_SIZE,
    DRAWN,
    EPOCHS,
    LAYERS,
    NUM_SAMPLES,
    SHAPES,
    start,
    train,
)
from course_grader.parts.rules import Rule
from course_grader.types import Array, Observation, Why

# ---- it runs


def run_of(seen: Observation) -> dict[str, Any]:
    """What `run_script` found."""
    run: dict[str, Any] = seen.got[0].values["run"]
    return run


def _text(seen: Observation) -> str:
    return str(seen.got[0].values["text"])


def _no_text(seen: Observation) -> Why | None:
    run = run_of(seen)
    if run["status"] != "type":
        return None
    return Why("the function must return the text of the script, a str", f"got {run['error']}")


def _waits(seen: Observation) -> Why | None:
    status, text = run_of(seen)["status"], _text(seen)
    if status == "port":
        return Why(
            "the script called at a port of its own instead of the one torchrun gave it in MASTER_PORT",
            advice=hints(text, "port") or "Do not set MASTER_PORT, and give no init_method.",
        )
    if status in ("idle", "timeout"):
        waits = "all processes waited and none did anything" if status == "idle" else "time ran out"
        why = Why(f"the script did not end: {waits}", advice="Does every process reach the same collectives?")
        return why.advised(hints(text, "port"))
    return None


def _stops(seen: Observation) -> Why | None:
    run = run_of(seen)
    at = f"line {run['line']}: " if run.get("line") else ""
    if run["status"] == "syntax":
        return Why("the script must be Python", f"{at}{run['error']}", "Repair that line.")
    if run["status"] != "failed":
        return None
    who = f" on rank {run['rank']}" if run.get("rank") is not None else ""
    what = run["error"].rstrip(".!?")
    return Why(f"the script stopped{who}; {at}{what}.").advised(hints(_text(seen), "start"))


# ---- it reports


def _no_report(seen: Observation) -> Why | None:
    reports = run_of(seen)["reports"]
    for rank, report in enumerate(reports):
        why = _problem_of(report, f"rank{rank}.json")
        if why is not None:
            return why
    counts = [len(report["steps"]) for report in reports]
    if len(set(counts)) == 1:
        return None
    return Why("every process must take the same number of steps", f"they took {counts}")


def _problem_of(report: Any, file: str) -> Why | None:
    if report is None:
        return Why(f"{file} is missing: every process must write one before it ends.")
    try:
        epochs = [step["epoch"] for step in report["steps"]]
        sizes = [len(step["indices"]) for step in report["steps"]]
        every = [i for step in report["steps"] for i in step["indices"]]
        fine = all(type(i) is int and 0 <= i < NUM_SAMPLES for i in every)
        fine = fine and all(isinstance(step["loss"], float) for step in report["steps"])
        shapes = [len(row) for row in report["parameters"]]
        fine = fine and all(isinstance(v, float) for row in report["parameters"] for v in row)
        device = str(report["device"])
    except (KeyError, TypeError, IndexError):
        return Why(
            f"{file} must hold device, steps (epoch, indices, loss) and parameters as the script writes them."
        )
    if not device.startswith("cpu"):
        return Why(f"{file} says device {device!r}; with --gpus 0 the script must train on the CPU.")
    if sorted(set(epochs)) != list(range(EPOCHS)):
        return Why(f"{file} holds the epochs {sorted(set(epochs))}; --epochs {EPOCHS} was asked.")
    if max(sizes) > BATCH_SIZE or min(sizes) < 1:
        return Why(f"{file} has steps of up to {max(sizes)} samples; --batch-size {BATCH_SIZE} was asked.")
    if not fine or shapes != SHAPES:
        return Why(
            f"{file} must hold indices of the data set, losses and parameters, all as lists of numbers."
        )
    return None


# ---- it trains as one process would

STYLES = {
    "alone": "no gradient crosses the ranks: call the wrapped model, not the module inside it",
    "kept": "gradients are never cleared: zero_grad() before each backward",
    "alone kept": "no gradient crosses the ranks, and gradients are never cleared",
    "whole": "every process computes the batches of all on its own data: no gradient crosses the ranks",
    "sum": "gradients are summed instead of averaged: DDP and FSDP divide by the number of processes already",
    "twice": "gradients are divided by the number of processes once more: DDP and FSDP do it already",
    "still": "nothing is learned: the optimizer steps tensors that the model does not hold",
}


def _other_values(seen: Observation) -> Why | None:
    wrong, *others = (_differs(seen, start(seen.case, dtype)) for dtype in DRAWN)
    return wrong if wrong and all(others) else None


def _ends(reports: list[Any]) -> list[Array]:
    return [np.concatenate([np.array(row) for row in report["parameters"]]) for report in reports]


def _tolerance(ends: list[Array]) -> float:
    """Whoever trains in float32 reports numbers of float32."""
    with np.errstate(over="ignore"):
        return 2e-5 if all((end == end.astype(np.float32)).all() for end in ends) else 1e-9


def _differs(seen: Observation, begin: list[Array]) -> Why | None:
    reports = run_of(seen)["reports"]
    losses = np.array([[step["loss"] for step in report["steps"]] for report in reports])
    ends = _ends(reports)
    near = _tolerance(ends)

    def equal(style: str) -> bool:
        want_losses, want_ends = train(seen.case, reports, begin, style)
        pairs = [(losses, want_losses), *zip(ends, want_ends, strict=True)]
        return all(np.allclose(got, want, rtol=0, atol=near) for got, want in pairs)

    if equal(""):
        return None
    with np.errstate(all="ignore"):
        known = next((words for style, words in STYLES.items() if equal(style)), "")
    differ = [r for r, end in enumerate(ends) if not np.allclose(end, ends[0], rtol=0, atol=near)]
    return Why("the script ran, and did not train what one process would.").advised(
        _first_wrong_loss(losses, train(seen.case, reports, begin)[0], near),
        f"Ranks 0 and {differ[0]} end with different parameters." if differ else "",
        f"This is what you get if {known}." if known else "",
        hints(_text(seen), "values"),
    )


def _first_wrong_loss(losses: Array, want: Array, near: float) -> str:
    wrong = np.argwhere(np.abs(losses - want) > near)
    if not len(wrong):
        return ""
    r, s = (int(i) for i in wrong[np.argmin(wrong[:, 1])])
    return f"First wrong loss: step {s} of rank {r}, {losses[r, s]:.9g} instead of {want[r, s]:.9g}."


def _sends_nothing(seen: Observation) -> Why | None:
    run = run_of(seen)
    for rank, (report, count) in enumerate(zip(run["reports"], run["launched"], strict=True)):
        if isinstance(count, int) and count < len(report["steps"]):
            return Why(
                f"rank {rank} took {len(report['steps'])} steps and launched {count} collectives, sends and "
                "receives: each process must compute on its own samples alone, and gradients must cross in "
                "every step."
            )
    return None


# ---- every epoch deals out all samples, and in another order than the one before


def _dealt_wrongly(seen: Observation) -> Why | None:
    reports = run_of(seen)["reports"]
    n, dealt = len(reports), [_hands(reports, epoch) for epoch in range(EPOCHS)]
    for epoch, hands in enumerate(dealt):
        together = [i for hand in hands for i in hand]
        missing, repeats = NUM_SAMPLES - len(set(together)), len(together) - len(set(together))
        if n > 1 and hands[0] == hands[1]:
            return Why(f"in epoch {epoch} ranks 0 and 1 take the same samples: give the loader the sampler.")
        if missing or repeats > n - 1:
            return Why(
                f"in epoch {epoch} {missing} of {NUM_SAMPLES} samples are left out and {repeats} are taken "
                f"again: at most {n - 1} repeats and none left out are right."
            )
    if any(dealt[e] == dealt[e - 1] for e in range(1, EPOCHS)):
        return Why("every epoch has the same order.").advised(hints(_text(seen), "order"))
    return None


def _hands(reports: list[Any], epoch: int) -> list[list[int]]:
    return [[i for s in report["steps"] if s["epoch"] == epoch for i in s["indices"]] for report in reports]


def gate(part: str, problem: Callable[[Observation], Why | None]) -> Rule:
    """A rule without which nothing else is judged."""
    return Rule(part=part, problem=problem, gate=True)


def whole_weights(seen: Observation) -> Why | None:
    """What is wrong if processes do not step their own rows of each weight alone, as FSDP2 cuts them."""
    run = run_of(seen)
    n = len(run["reports"])
    most = sum(-(-rows // n) * (columns + 1) for columns, rows in LAYERS)
    for rank, stepped in enumerate(run["stepped"]):
        if isinstance(stepped, int) and not 0 < stepped <= most:
            return Why(
                f"an optimizer of torch.optim must step a process's own rows of each weight, {most} elements",
                f"it stepped {stepped} on rank {rank}",
                "fully_shard cuts the weights over all processes; the optimizer is made of what it leaves.",
            )
    return None


RULES = [
    gate("values", _no_text),
    gate("terminates", _waits),
    gate("runs", _stops),
    gate("values", _no_report),
    gate("values", _other_values),
    gate("values", _sends_nothing),
    Rule(
        part="order",
        problem=_dealt_wrongly,
        passed=f"{NUM_SAMPLES} samples dealt to all, another order in each of {EPOCHS} epochs",
    ),
]
