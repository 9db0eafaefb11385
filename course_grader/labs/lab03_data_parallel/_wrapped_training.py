"""Judge's half of `wrapped_training`: the same training in one process, right and with mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_grader.inside.toy_models import NUM_STEPS, STRAY, ToyNet, nbytes, toy_tensors, uses_optional
from course_grader.inside.toy_models import trainable as trainable
from course_grader.labs.lab03_data_parallel._toy_oracle import (
    FIRST,
    NO_BUFFERS,
    NO_FROZEN,
    NO_UNSAVED,
    NOT_BROADCAST,
    Combine,
    averaged,
    averaged_where_used,
    kept_apart,
    replicas,
    summed,
    toy_inputs,
    whole_batch,
)
from course_grader.parts.common import Window
from course_grader.types import Case, Expected, Scenario

AWKWARD = {"tied": True, "frozen": True, "unused": True, "optional": True, "odd_buffers": True}
CONSTRUCTION = Window("built", "constructed", "the constructor")
STEPS = [Window(f"step {s} begins", f"step {s} synchronised", f"step {s}") for s in range(NUM_STEPS)]


def _twice(grads: list[Tensor]) -> list[Tensor]:
    return [grad / len(grads) for grad in averaged(grads)]


LOCAL_ONLY = {"combine": kept_apart}
MISTAKES: dict[str, dict[str, Any]] = {
    "gradients are summed and not divided: did you average?": {"combine": summed},
    NO_UNSAVED: {"own": "unsaved"},
    NO_BUFFERS: {"own": "buffers"},
    NO_FROZEN: {"own": "frozen"},
    NOT_BROADCAST: {"own": "all"},
    "gradients are divided by world_size twice": {"combine": _twice},
}
USED_BY_SOME: dict[str, dict[str, Any]] = {  # where a case names ranks `without_optional`
    "a rank that did not use the parameter keeps its own gradient, empty or zero": {
        "combine": averaged_where_used
    },
}


def case(
    world_size: int, words: str, *, optional_from: int = 0, params: dict[str, Any] | None = None, **model: Any
) -> Case:
    """A world that trains `ToyNet(**model)`.

    Args:
        optional_from: the first step in which the optional layer is used.
        params: what else ranks may know: "without_optional", "keeps_gradients", arguments of the answer.
    """
    label = f"{world_size} rank{'s' * (world_size > 1)}, {words}"
    given = {"model": model, "optional_from": optional_from, **(params or {})}
    return Case(world_size=world_size, params=given, label=label)


def trained(case: Case, combine: Combine | None = None, own: str = "") -> Expected:
    """Outputs, gradients, weights after SGD: of one process on the whole batch, or replicas with a mistake.

    combine: what every rank makes of all ranks' gradients. own: what starts as each rank made it.
    """
    n = case.world_size
    shards = [{k: torch.from_numpy(v) for k, v in toy_inputs(case, r).items()} for r in range(n)]
    if combine is None and not own:
        found = whole_batch(case, shards)
    else:
        found = replicas(case, shards, combine or averaged, own=own)
    world: Expected = {name: [tensor.detach().numpy() for tensor in each] for name, each in found.items()}
    return {**world, STRAY: [[]] * n}


def wrapped_training(**options: Any) -> Scenario:
    """The answer around a small model that is trained two steps; options as its program says."""
    return Scenario(
        rank_side="course_grader.inside.programs.lab03:wrapped_training",
        inputs=toy_inputs,
        options=options,
        follows=lambda name: not name.startswith("grad:") and name != FIRST,
        returned=_returned,
    )


def _returned(case: Case) -> Sequence[tuple[str, str]]:
    del case
    steps = [(f"step {s} synchronised", f"sync_gradients of step {s} returns") for s in range(NUM_STEPS)]
    return [("constructed", "the constructor returns"), *steps]


# ---- sizes


def model_bytes(case: Case) -> int:
    """Bytes of parameters and buffers."""
    return nbytes(toy_tensors(ToyNet(**case.params["model"])).values())


def used(case: Case, step: int) -> list[nn.Parameter]:
    """Parameters that get a gradient in a step, tied ones once."""
    idle = {"unused"} if uses_optional(case.params, 0, step) else {"unused", "optional"}
    named = ToyNet(**case.params["model"]).named_parameters()
    return [p for name, p in named if p.requires_grad and name.partition(".")[0] not in idle]
