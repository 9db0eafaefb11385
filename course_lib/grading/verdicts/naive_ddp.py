"""`NaiveDDP`: one all_reduce a parameter, after backward."""

from __future__ import annotations

from typing import Any

from torch import nn

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData
from course_lib.grading.measure import left_in_flight
from course_lib.grading.toy_oracle import (
    collectives,
    construction_problem,
    events_between,
    later_gates,
    toy_inputs,
    toy_oracle,
)
from course_lib.grading.toys import NUM_STEPS, ToyNet, nbytes, toy_tensors, uses_optional

EXERCISE = Exercise(
    id="naive_ddp",
    lab="03_data_parallel",
    order=2,
    symbol="NaiveDDP",
    title="Data parallelism, the plain way",
    minutes=25,
    difficulty=2,
    importance=5,
    lines=16,
    points={"values": 3.0, "bytes": 1.0},
    graded="Values, at 1-4 ranks (hidden: 5, 6), over two steps: outputs, gradients and the weights after "
    "SGD equal one process on the whole batch, with tied weights, a frozen layer, parameters no rank uses "
    "(`.grad` stays None) or all use from the second step on; ranks that start different end equal, "
    "buffers and frozen parameters too. Bytes: the constructor puts at most the model once into "
    "collectives; a step launches exactly one all_reduce for each parameter that has a gradient (a tied "
    "one once), of its bytes, and nothing else, and waits for each. One rank alone may skip them.",
    closed=(
        "course_lib.parallel",
        "course_lib.grading.supplied_ddp",
        "torch:ddp",
        "torch:fsdp",
        "torch:comm_hooks",
    ),
    signature="(module)",
    hints=(
        "Two moments need communication: when the module is wrapped (all ranks must start from rank 0's "
        "weights) and after each backward. In between every rank works alone.",
        "`module.parameters()` gives a tied parameter once; `module.buffers()` gives the buffers. After "
        "backward, `.grad` is None for what is frozen or was not used.",
        "In the constructor: under torch.no_grad, broadcast every parameter and buffer from rank 0. In "
        "`sync_gradients`: all_reduce each `.grad` that exists, in place, and divide it by the world size.",
    ),
)

AWKWARD = {"tied": True, "frozen": True, "unused": True, "optional": True, "odd_buffers": True}
LATE = "tied weights, a layer used from the second step on"
_NEVER = {"optional_from": NUM_STEPS, "stay_none": ["unused", "optional"]}
_LATER = {"optional_from": 1, "stay_none": ["unused"]}


def cases(seed: int, hidden: bool) -> list[Case]:
    """Each awkward kind of parameter; hidden: 5 and 6 ranks, and a model of over 1 MB."""
    models: list[tuple[int, str, dict[str, Any]]] = [
        (1, "plain", {}),
        (2, LATE, {"tied": True, "optional": True}),
        (3, "a frozen layer, unused parameters", {"frozen": True, "unused": True, "odd_buffers": True}),
        (4, "tied, frozen and unused parameters", AWKWARD),
    ]
    if hidden:
        models += [(5, "tied, frozen and unused parameters", AWKWARD), (6, "plain", {"depth": 1})]
        models += [(3, "a model of 1.5 MB", {"width": 250, "tied": True})]
    return [
        Case(
            world_size=n,
            seed=seed,
            params={"model": model, **(_LATER if words == LATE else _NEVER)},
            label=f"{n} rank{'s' * (n > 1)}, {words}",
        )
        for n, words, model in models
    ]


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """Weights of this rank's own, and its shards of two batches."""
    return toy_inputs(case, rank)


def oracle(case: Case) -> dict[str, Any]:
    """One process on the whole batch."""
    return dict(toy_oracle(case))


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Count the collectives of the constructor and of each step."""
    late = later_gates(case, got, want) or _in_flight(got)
    if late:
        return late
    model = ToyNet(**case.params["model"])
    used = [_used(case, model, step) for step in range(NUM_STEPS)]
    for rank, data in enumerate(got):
        problem = construction_problem(data.traced, nbytes(toy_tensors(model).values()))
        for step in range(NUM_STEPS):
            problem = problem or _step_problem(data, step, used[step], alone=len(got) == 1)
        if problem:
            return [Part("bytes", False, f"on rank {rank} {problem}")]
    text = f"{len(used[-1])} all_reduces, {nbytes(used[-1]):,} bytes a step on each rank"
    return [Part("bytes", True, text)]


def _in_flight(got: list[RankData]) -> list[Part]:
    """A gate: who does not wait may read a gradient before it is the mean, on a slower network say."""
    for rank, data in enumerate(got):
        for step in range(NUM_STEPS):
            left = left_in_flight(
                events_between(data.traced, f"step {step} begins", f"step {step} synchronised")
            )
            if left:
                text = (
                    f"when sync_gradients returns, every call must have been waited for; on rank {rank} "
                    f"{len(left)} {left[0]} of step {step} are still in flight. wait() on each Work."
                )
                return [Part("values", False, text, gate=True)]
    return []


def _used(case: Case, model: ToyNet, step: int) -> list[nn.Parameter]:
    """Parameters that get a gradient in a step."""
    idle = {"unused"} if uses_optional(case.params, 0, step) else {"unused", "optional"}
    named = model.named_parameters()
    return [p for name, p in named if p.requires_grad and name.partition(".")[0] not in idle]


def _step_problem(data: RankData, step: int, used: list[nn.Parameter], *, alone: bool) -> str:
    num, total = len(used), nbytes(used)
    calls = collectives(events_between(data.traced, f"step {step} begins", f"step {step} synchronised"))
    seen = sum(call.bytes_ for call in calls)
    others = sorted({call.op for call in calls} - {"all_reduce"})
    if (len(calls), seen, others) == (num, total, []) or (alone and not calls):
        return ""
    names = f" ({', '.join(others)} among them)" if others else ""
    return (
        f"a step must launch {num} all_reduces, one a parameter that has a gradient, {total:,} bytes in "
        f"all; step {step} launched {len(calls)} collectives{names}, {seen:,} bytes."
    )
