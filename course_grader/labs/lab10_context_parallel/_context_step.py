"""Judge's half of `context_step`: the batch, the model, and the step of one process."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from course_grader.expected.on_ranks import axis_group, sizes_of
from course_grader.expected.on_ranks import case as on_ranks_case
from course_grader.types import Array, Case, Expected, Scenario, rng
from course_lib.config import ModelConfig
from course_lib.model.transformer import Transformer, cross_entropy

CONFIG = ModelConfig(vocab_size=32, model_dim=16, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=24)
MODEL_SEED = 10


def case(
    cp: int, *, dp: int = 1, tp: int = 1, layout: str = "zigzag", seq_len: int = 24, batch: int = 2
) -> Case:
    """A batch of sequences over a ring of cp ranks; dp x tp such rings with batches of their own."""
    n = dp * cp * tp
    label = f"{n} rank{'s' * (n > 1)}, {layout}, {seq_len} tokens"
    label += (f", {dp * tp} groups" if dp * tp > 1 else "") + (", tp inside" if tp > 1 else "")
    params: dict[str, Any] = {"layout": layout, "seq_len": seq_len, "batch": batch}
    params |= {"config": asdict(CONFIG), "model_seed": MODEL_SEED}
    return on_ranks_case(mesh={"dp": dp, "cp": cp, "tp": tp}, label=label, **params)


def cp_size(case: Case) -> int:
    """Ranks that share a batch."""
    return sizes_of(case)["cp"]


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    size = case.params["batch"], case.params["seq_len"] + 1
    text = rng(case, 1 + axis_group(case, rank, "cp")[0]).integers(0, CONFIG.vocab_size, size=size)
    return {"tokens": text[:, :-1].copy(), "targets": text[:, 1:].copy()}


SCENARIO = Scenario(rank_side="course_grader.inside.programs.lab10:context_step", inputs=_inputs)


def one_process(case: Case, *, grads: float = 1.0, loss: float = 1.0, everywhere: bool = False) -> Expected:
    """Loss and gradients of the whole batch, times factors.

    everywhere: those of all groups' batches are added up.
    """
    first = [axis_group(case, rank, "cp")[0] for rank in range(case.world_size)]
    found = {rank: _of_group(case, rank) for rank in sorted(set(first))}
    names = found[0].keys()
    if everywhere:
        summed = {name: sum(one[name] for one in found.values()) for name in names}
        found = dict.fromkeys(found, summed)
    factors = {name: loss if name == "loss" else grads for name in names}
    return {name: [np.asarray(found[at][name] * factors[name]) for at in first] for name in names}


def _of_group(case: Case, rank: int) -> dict[str, Any]:
    batch = {name: torch.from_numpy(array) for name, array in _inputs(case, rank).items()}
    model = Transformer(CONFIG, seed=MODEL_SEED, dtype=torch.float64)
    found = cross_entropy(model(batch["tokens"]), batch["targets"])
    found.backward()
    grads = {f"grad:{name}": np.asarray(param.grad) for name, param in model.named_parameters()}
    return {"loss": np.asarray(found.detach()), **grads}


def param_bytes() -> int:
    """Bytes of all gradients."""
    return 8 * CONFIG.num_params


def ring_bytes(case: Case) -> int:
    """Bytes that the core sends from a rank: K and V twice, their gradients once, cp - 1 hops per layer."""
    p, n = case.params, cp_size(case)
    kv = 2 * 8 * p["batch"] * (p["seq_len"] // n) * CONFIG.num_kv_heads * CONFIG.head_dim
    return int(CONFIG.num_layers * 3 * (n - 1) * kv)


def model_flops(case: Case) -> float:
    """FLOPs of forward and backward in one process: 6 per matrix element and token, and 14 S^2 H per head.

    Attention counts the full square: 2 products forward, 5 backward (lab 07).
    """
    p = case.params
    matrices = CONFIG.num_params - CONFIG.vocab_size * CONFIG.model_dim  # the embedding only looks up
    scores = CONFIG.num_layers * p["seq_len"] ** 2 * CONFIG.model_dim
    return float(p["batch"] * (6 * matrices * p["seq_len"] + 14 * scores))
