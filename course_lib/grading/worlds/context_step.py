"""Judge's half of `scenarios/context_step`: the batch, the model, and the step of one process."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from course_lib.config import ModelConfig
from course_lib.grading.core.types import Array, Case, Scenario, World, rng
from course_lib.model.transformer import Transformer, cross_entropy

CONFIG = ModelConfig(vocab_size=32, model_dim=16, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=24)
MODEL_SEED = 10
COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_single", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_single", "all_to_all", "all_to_all_single",
)  # fmt: skip


def case(world_size: int, *, dp: int = 1, layout: str = "zigzag", seq_len: int = 24, batch: int = 2) -> Case:
    """A batch of sequences over a ring of all ranks; dp such rings with batches of their own."""
    words = f"{world_size} rank{'s' * (world_size > 1)}, {layout}, {seq_len} tokens"
    params = {
        "layout": layout,
        "dp": dp,
        "seq_len": seq_len,
        "batch": batch,
        "config": asdict(CONFIG),
        "model_seed": MODEL_SEED,
    }
    return Case(world_size=world_size, params=params, label=words + (f", {dp} groups" if dp > 1 else ""))


def cp_size(case: Case) -> int:
    """Ranks that share a batch."""
    return int(case.world_size // case.params["dp"])


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    size = case.params["batch"], case.params["seq_len"] + 1
    text = rng(case, 1 + rank // cp_size(case)).integers(0, CONFIG.vocab_size, size=size)
    return {"tokens": text[:, :-1].copy(), "targets": text[:, 1:].copy()}


SCENARIO = Scenario(rank_side="course_lib.grading.scenarios.context_step", inputs=_inputs)


def one_process(case: Case, *, grads: float = 1.0, loss: float = 1.0, everywhere: bool = False) -> World:
    """Loss and gradients of the whole batch, times factors.

    everywhere: those of all groups' batches are added up.
    """
    n = cp_size(case)
    of_groups = [_of_group(case, group * n) for group in range(case.params["dp"])]
    if everywhere:
        of_groups = [{name: sum(found[name] for found in of_groups) for name in of_groups[0]}] * len(
            of_groups
        )
    factors = {name: loss if name == "loss" else grads for name in of_groups[0]}
    return {
        name: [np.asarray(found[name] * factor) for found in of_groups for _ in range(n)]
        for name, factor in factors.items()
    }


def _of_group(case: Case, rank: int) -> dict[str, Any]:
    batch = {name: torch.from_numpy(array) for name, array in _inputs(case, rank).items()}
    model = Transformer(CONFIG, seed=MODEL_SEED, dtype=torch.float64)
    found = cross_entropy(model(batch["tokens"]), batch["targets"])
    found.backward()
    grads = {f"grad:{name}": np.asarray(param.grad) for name, param in model.named_parameters()}
    return {"loss": np.asarray(found.detach()), **grads}


def num_params(case: Case) -> int:
    """Elements of all gradients."""
    del case
    return CONFIG.num_params


def model_flops(case: Case) -> float:
    """FLOPs of forward and backward in one process: 6 a matrix element and token, and 14 S^2 H a head.

    Attention counts the full square: 2 products forward, 5 backward (lab 07).
    """
    p = case.params
    matrices = CONFIG.num_params - CONFIG.vocab_size * CONFIG.model_dim  # the embedding only looks up
    scores = CONFIG.num_layers * p["seq_len"] ** 2 * CONFIG.model_dim
    return float(p["batch"] * (6 * matrices * p["seq_len"] + 14 * scores))
