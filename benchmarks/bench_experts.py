"""Mixture of experts: ours against a plain loop over experts; bytes of dispatch.

The same layer and tokens, forward and backward, float32. The plain loop asks for every expert who chose it
and adds its results up; ours sorts the rows by expert once. One thread. Bytes are those of four ranks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.config import ModelConfig
from course_lib.model.moe import MoE
from course_lib.parallel.expert import ExpertParallelMoE
from course_lib.ranks import run_ranks

Row = tuple[str, float, str, str]

NUM_RANKS, TOKENS, ROUNDS = 4, 2048, 5
MODEL_DIM = 256


def config(num_experts: int, expert_ffn_dim: int) -> ModelConfig:
    return ModelConfig(
        model_dim=MODEL_DIM, num_experts=num_experts, experts_per_token=2, expert_ffn_dim=expert_ffn_dim
    )


def plain_loop(moe: MoE, x: torch.Tensor) -> torch.Tensor:
    """Every expert in turn: a mask of its tokens, its network, an addition."""
    routing, out = moe.choose(x), torch.zeros_like(x)
    for expert in range(len(moe.experts.gate)):
        mask = routing.experts == expert
        token = mask.any(1)
        weight = (routing.weights * mask).sum(1)[token]
        rows = x[token]
        hidden = F.silu(rows @ moe.experts.gate[expert].T) * (rows @ moe.experts.up[expert].T)
        result = torch.zeros_like(x)
        result[token] = weight[:, None] * (hidden @ moe.experts.down[expert].T)
        out = out + result
    return out


def median_s(step: Callable[[torch.Tensor], torch.Tensor], num_tokens: int) -> float:
    x, seconds = torch.randn(num_tokens, MODEL_DIM, requires_grad=True), []
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        step(x).square().sum().backward()
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


def alone(num_experts: int, ffn_dim: int) -> tuple[float, float]:
    torch.set_num_threads(1)
    moe = MoE(config(num_experts, ffn_dim))
    return median_s(moe, TOKENS), median_s(lambda x: plain_loop(moe, x), TOKENS)


def sent_over_routed(num_experts: int, ffn_dim: int) -> float:
    """Run a forward; return the bytes of the rows that this rank's choices are."""
    moe = ExpertParallelMoE(config(num_experts, ffn_dim), dist.group.WORLD)
    with torch.no_grad():
        moe(torch.randn(TOKENS // NUM_RANKS + dist.get_rank(), MODEL_DIM))
    assert moe.routing is not None
    return float(4 * MODEL_DIM * moe.routing.experts.numel())


def rows() -> list[Row]:
    """Give (name, value, unit, note)."""
    found: list[Row] = []
    for num_experts, ffn_dim in ((8, 512), (64, 64)):
        of = f"{num_experts} experts of width {ffn_dim}"
        note = f"{TOKENS:,} tokens of {MODEL_DIM}, two experts each"
        ours_s, loop_s = run_ranks(alone, 1, num_experts, ffn_dim, monitor=False, timeout_s=600)[0]
        found.append((f"{of}: ours", ours_s, "s", note))
        found.append((f"{of}: plain loop / ours", loop_s / ours_s, "x", "time"))
    world = run_ranks(sent_over_routed, NUM_RANKS, 8, 64, trace=True)
    ratios = [
        list(world.trace.ranks[rank].launches("all_to_all_single"))[1].bytes_ / routed
        for rank, routed in enumerate(world)
    ]
    found.append(("bytes of dispatch / of the routing", max(ratios), "x", f"the least is {min(ratios):.3g}"))
    return found


if __name__ == "__main__":
    for row in rows():
        print(*row, sep=" | ")
