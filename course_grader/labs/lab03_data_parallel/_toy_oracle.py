"""What data-parallel training of a toy must give: one process, the whole batch.

Known mistakes are trained too, as replicas that combine gradients wrongly, so that a verdict can name them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from course_grader.exercise import Array, Case, rng
from course_grader.inside.toy_models import (
    LEARNING_RATE,
    NUM_STEPS,
    WEIGHT,
    ToyNet,
    build_toy,
    gradients_of,
    state_of,
    toy_weights,
    uses_optional,
)

SAMPLES = 3  # of a rank at a step
Combine = Callable[[list[Tensor]], list[Tensor]]  # every rank's gradient -> what every rank ends up with
FIRST = "output of step 0"  # depends on the start alone
NOT_BROADCAST = "rank 0's weights were never broadcast"
NO_BUFFERS = "buffers start as each rank made them: `module.parameters()` does not give them"
NO_FROZEN = "frozen parameters start as each rank made them: they have no gradient, but they compute"
NO_UNSAVED = "a buffer with persistent=False starts as each rank made it: `state_dict()` does not give it"


def toy_inputs(case: Case, rank: int) -> dict[str, Array]:
    """Weights of this rank's own (ranks start different) and its shards of two batches."""
    draw = rng(case, rank)
    arrays = toy_weights(case.params["model"], draw)
    dtype = case.params["model"].get("dtype", "float64")
    for step in range(NUM_STEPS):
        arrays[f"x{step}"] = draw.normal(size=(SAMPLES, 5)).astype(dtype)
        arrays[f"y{step}"] = draw.normal(size=(SAMPLES, 3)).astype(dtype)
    return arrays


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
    """A model per rank, gradients by `combine`; own: what starts as each rank made it (`_own_state`)."""
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
