"""A block in our tensor-parallel form and in DTensor's: the same values, and where the bytes differ, why."""

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.config import ModelConfig
from course_lib.model.attention import rope_tables
from course_lib.model.transformer import Block
from course_lib.parallel.tensor import ShardSpec, shard_transformer_, sharded_parameters
from course_lib.ranks.launch import run_ranks
from course_lib.trace import RankTrace, mark

SIZES = ModelConfig(model_dim=16, num_heads=4, num_kv_heads=2, ffn_dim=24, max_seq_len=8)
FULL = 2 * 8 * 16 * 8  # bytes of [B, S, D] in float64
PART = FULL // 2


def shard_with_dtensor_(block: Block, sequence_parallel: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    columns = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "ffn.gate_proj", "ffn.up_proj")
    out = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel(output_layouts=out) for name in ("attention.out_proj", "ffn.down_proj")}
    if sequence_parallel:  # gathered once for all columns that share it
        plan |= {name: SequenceParallel() for name in ("attention_norm", "ffn_norm")}
        for name, others in (("attention", (None,) * 3), ("ffn", ())):
            plan[name] = PrepareModuleInput(
                input_layouts=(Shard(1), *others), desired_input_layouts=(Replicate(), *others)
            )
    parallelize_module(block, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def run_block(
    who: str, sequence_parallel: bool
) -> tuple[Tensor, Tensor, dict[str, Any], dict[str, ShardSpec]]:
    torch.manual_seed(0)
    block = Block(SIZES).double()
    if who == "ours":
        shard_transformer_(block, dist.group.WORLD, sequence_parallel=sequence_parallel)
    else:
        shard_with_dtensor_(block, sequence_parallel)
    x = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = (x.chunk(2, 1)[dist.get_rank()].clone() if sequence_parallel else x).requires_grad_()
    positions = torch.arange(8)
    cos, sin = rope_tables(positions, SIZES.head_dim, 1e4, torch.float64)
    mark("start")
    out = block(x, cos, sin, positions)
    out.square().sum().backward()
    mark("end")
    gradients: dict[str, Any] = {name: param.grad for name, param in block.named_parameters()}
    if who == "dtensor":  # those of norms are still one addend a rank
        gradients = {
            name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in gradients.items()
        }
    assert x.grad is not None
    return out.detach(), x.grad, gradients, sharded_parameters(block)


def sent(trace: RankTrace) -> Counter[tuple[str, str, int]]:
    start, end = (trace.position(point) for point in trace.marks)
    calls = [event for event in trace.events[start:end] if event in trace.collectives()]
    return Counter((call.phase, call.op, call.bytes_) for call in calls)  # type: ignore[union-attr]


OURS = {
    False: {("forward", "all_reduce", FULL): 2, ("backward", "all_reduce", FULL): 2},
    True: {
        ("forward", "all_gather_single", PART): 2,
        ("forward", "reduce_scatter_single", FULL): 2,
        ("backward", "all_gather_single", PART): 4,
        ("backward", "reduce_scatter_single", FULL): 2,
        ("backward", "all_reduce", 16 * 8): 2,
    },
}
DTENSOR = {
    # A column-parallel layer reduces its input's gradient by itself: q, k, v, gate and up are five.
    False: {("forward", "all_reduce", FULL): 2, ("backward", "all_reduce", FULL): 5},
    True: {
        ("forward", "all_gather_single", PART): 2,
        ("forward", "reduce_scatter_single", FULL): 2,
        # It keeps the gathered inputs for backward: two all_gathers fewer, and S positions saved for S/tp.
        ("backward", "all_gather_single", PART): 2,
        ("backward", "reduce_scatter_single", FULL): 2,
        # It leaves the norms' gradients Partial, until somebody needs their values.
    },
}


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_block_equals_dtensor(sequence_parallel: bool) -> None:
    ours = run_ranks(run_block, 2, "ours", sequence_parallel, trace=True)
    theirs = run_ranks(run_block, 2, "dtensor", sequence_parallel, trace=True)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine[:2], other[:2])
        for name, gradient in mine[2].items():
            spec = mine[3].get(name)
            full = other[2][name]
            torch.testing.assert_close(gradient, full if spec is None else spec.cut(full), msg=name)
    assert sent(ours.trace[0]) == OURS[sequence_parallel]
    assert sent(theirs.trace[0]) == DTENSOR[sequence_parallel]
    if sequence_parallel:
        assert ours.trace[0].saved_bytes < theirs.trace[0].saved_bytes
