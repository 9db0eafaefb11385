"""What data-parallel training of a toy must give: one process, the whole batch. Verdict side only.

Known mistakes are trained too, as replicas that combine gradients wrongly, so that a verdict can name them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from course_lib.grading.compare import compare
from course_lib.grading.exercise import Array, Case, Part, RankData, Want, rng
from course_lib.grading.toys import (
    LEARNING_RATE,
    NUM_STEPS,
    STRAY,
    WEIGHT,
    ToyNet,
    build_toy,
    gradients_of,
    state_of,
    toy_weights,
    uses_optional,
)
from course_lib.trace import Event, Launch, Mark, RankTrace

SAMPLES = 3  # of a rank at a step
Combine = Callable[[list[Tensor]], list[Tensor]]  # every rank's gradient -> what every rank ends up with
FIRST = "output of step 0"  # depends on the start alone
NOT_BROADCAST = "rank 0's weights were never broadcast"
NO_BUFFERS = "buffers start as each rank made them: `module.parameters()` does not give them"
NO_FROZEN = "frozen parameters start as each rank made them: they have no gradient, but they compute"
NO_UNSAVED = "a buffer with persistent=False starts as each rank made it: `state_dict()` does not give it"
LATER = "_"  # compared once the gradients hold, so that the cause is reported and not its effect


def toy_inputs(case: Case, rank: int) -> dict[str, Array]:
    """Weights of this rank's own (ranks start different) and its shards of two batches."""
    draw = rng(case, rank)
    arrays = toy_weights(case.params["model"], draw)
    dtype = case.params["model"].get("dtype", "float64")
    for step in range(NUM_STEPS):
        arrays[f"x{step}"] = draw.normal(size=(SAMPLES, 5)).astype(dtype)
        arrays[f"y{step}"] = draw.normal(size=(SAMPLES, 3)).astype(dtype)
    return arrays


def toy_oracle(case: Case) -> dict[str, Any]:
    """Train on the whole batch in one process from rank 0's weights, and each known mistake if asked for."""
    n = case.world_size
    shards = [{k: torch.from_numpy(v) for k, v in toy_inputs(case, r).items()} for r in range(n)]
    right = whole_batch(case, shards)
    alone = replicas(case, shards, kept_apart) if n > 1 else None
    mistakes: dict[str, tuple[Combine, str]] = {
        "gradients are summed and not divided: did you average?": (summed, ""),
        NO_UNSAVED: (averaged, "unsaved"),  # before the wider ones, which a tensor alone cannot be told from
        NO_BUFFERS: (averaged, "buffers"),
        NO_FROZEN: (averaged, "frozen"),
        NOT_BROADCAST: (averaged, "all"),
        "a rank that did not use the parameter keeps its own gradient, empty or zero": (
            averaged_where_used,
            "",
        ),
        "nothing is communicated, neither at the start nor later": (kept_apart, "all"),
        "gradients are divided by world_size twice": (lambda grads: [g / n for g in averaged(grads)], ""),
    }

    @cache
    def wrong(words: str) -> dict[str, list[Tensor]]:
        combine, own = mistakes[words]
        return replicas(case, shards, combine, own=own)

    def near(name: str, words: str) -> list[Array]:
        return [_array(a) for a in wrong(words)[name]]

    wants: dict[str, Any] = {
        name if name.startswith("grad:") or name == FIRST else LATER + name: Want(
            [_array(value[r]) for r in range(n)],
            per_rank=True,
            alone=[_array(a) for a in alone[name]] if alone and name.startswith("grad:") else None,
            near={words: partial(near, name, words) for words in mistakes} if n > 1 else {},
        )
        for name, value in right.items()
    }
    return wants | {LATER + STRAY: Want([])}


def later_gates(case: Case, got: list[RankData], want: Mapping[str, Any]) -> list[Part]:
    """Compare what follows from the gradients: later outputs, weights and buffers. Returns failing gates."""
    pairs = [(name.removeprefix(LATER), value) for name, value in want.items() if name.startswith(LATER)]
    return [part for name, value in pairs if (part := compare(name, case, got, value)) is not None]


def _array(tensor: Tensor) -> Array:
    return tensor.detach().numpy()


def whole_batch(case: Case, shards: Sequence[Mapping[str, Tensor]]) -> dict[str, list[Tensor]]:
    """One model, one loss over all samples."""
    n = case.world_size
    model = build_toy(case.params["model"], shards[0])
    out: dict[str, list[Tensor]] = {}
    for step in range(NUM_STEPS):
        model.zero_grad()
        outputs = [
            model(shard[f"x{step}"], with_optional=uses_optional(case.params, r, step))
            for r, shard in enumerate(shards)
        ]
        mse_loss(torch.cat(outputs), torch.cat([shard[f"y{step}"] for shard in shards])).backward()
        grads = gradients_of(model)
        out[f"output of step {step}"] = outputs
        out |= {f"grad:{name} at step {step}": [grad] * n for name, grad in grads.items()}
        _step(model, grads)
    return out | {f"{name} after {NUM_STEPS} steps": [t] * n for name, t in state_of(model).items()}


def replicas(
    case: Case, shards: Sequence[Mapping[str, Tensor]], combine: Combine, *, own: str = ""
) -> dict[str, list[Tensor]]:
    """A model a rank, gradients by `combine`; own: what starts as each rank made it (`_own_state`)."""
    n = case.world_size
    models = [build_toy(case.params["model"], shards[0]) for _ in range(n)]
    for model, shard in zip(models, shards, strict=True):
        for name, tensor in _own_state(model, own).items():
            tensor.detach().copy_(shard[WEIGHT + name])
    out: dict[str, list[Tensor]] = {}
    for step in range(NUM_STEPS):
        outputs = []
        for rank, (model, shard) in enumerate(zip(models, shards, strict=True)):
            model.zero_grad()
            outputs.append(model(shard[f"x{step}"], with_optional=uses_optional(case.params, rank, step)))
            mse_loss(outputs[-1], shard[f"y{step}"]).backward()
        local = [gradients_of(model) for model in models]
        combined = {name: combine([grads[name] for grads in local]) for name in local[0]}
        out[f"output of step {step}"] = outputs
        out |= {f"grad:{name} at step {step}": grads for name, grads in combined.items()}
        for rank, model in enumerate(models):
            _step(model, {name: grads[rank] for name, grads in combined.items()})
    states = [state_of(model) for model in models]
    return out | {f"{name} after {NUM_STEPS} steps": [s[name] for s in states] for name in states[0]}


def _own_state(model: ToyNet, own: str) -> dict[str, Tensor]:
    """The tensors of a model that were not broadcast: "all", "buffers", "frozen", "unsaved" or none ("")."""
    buffers, saved = dict(model.named_buffers()), model.state_dict()
    kinds: dict[str, dict[str, Tensor]] = {
        "all": {**dict(model.named_parameters()), **buffers},
        "buffers": buffers,
        "frozen": {name: p for name, p in model.named_parameters() if not p.requires_grad},
        "unsaved": {name: buffer for name, buffer in buffers.items() if name not in saved},
    }
    return kinds.get(own, {})


def summed(grads: list[Tensor]) -> list[Tensor]:
    """Every rank has the sum."""
    return [torch.stack(grads).sum(0)] * len(grads)


def averaged(grads: list[Tensor]) -> list[Tensor]:
    """Every rank has the mean."""
    return [torch.stack(grads).mean(0)] * len(grads)


def kept_apart(grads: list[Tensor]) -> list[Tensor]:
    """Every rank keeps its own."""
    return grads


def averaged_where_used(grads: list[Tensor]) -> list[Tensor]:
    """A rank whose own gradient is zero keeps it."""
    return [mean if own.any() else own for own, mean in zip(grads, averaged(grads), strict=True)]


@torch.no_grad()
def _step(model: ToyNet, grads: Mapping[str, Tensor]) -> None:
    for name, param in model.named_parameters():
        if name in grads:
            param.sub_(grads[name], alpha=LEARNING_RATE)


def events_between(trace: RankTrace, start: str | None, end: str) -> list[Event]:
    """The events from one mark (None: the beginning) to the first mark `end` after it."""
    events = trace.events
    first = 0 if start is None else _index(events, start, 0)
    return events[first : _index(events, end, first)]


def _index(events: Sequence[Event], name: str, first: int) -> int:
    return next(i for i in range(first, len(events)) if isinstance(e := events[i], Mark) and e.name == name)


def collectives(events: Sequence[Event]) -> list[Launch]:
    """The launches that ranks wait for; a barrier is one of no bytes."""
    return [e for e in events if isinstance(e, Launch) and e.op != "new_group"]


def construction_problem(trace: RankTrace, model_bytes: int) -> str:
    """Say what is wasteful before the first step; "" if nothing."""
    calls = collectives(events_between(trace, "built", "constructed"))
    seen = sum(c.bytes_ for c in calls if c.op != "recv")  # what a chain passes on counts once a rank
    if seen <= model_bytes:
        return ""
    return (
        f"the constructor may put at most the model's {model_bytes:,} bytes into collectives (each "
        f"parameter and buffer once); it put in {seen:,}."
    )
