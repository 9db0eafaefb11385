"""Context parallelism in simulated time: when a ring hides K and V, and what balance is worth."""

import pytest
import torch
import torch.distributed as dist

from course_lib.cost.cluster import uniform
from course_lib.cost.context import AttentionWork, ring_time
from course_lib.parallel.context import ContextParallel, RingAttention
from course_lib.ranks import run_ranks
from course_lib.replay import Efficiency, Replay, replay
from course_lib.trace import Trace

N, HEADS, KV_HEADS, HEAD_DIM = 4, 4, 2, 16
# A processor that is slow beside its memory and links, so that products alone take time.
SLOW = Efficiency(matmul=1e-4, memory=1.0)


def attention_trace(core: ContextParallel, block_len: int) -> Trace:
    def work() -> None:
        own = type(core)(dist.group.WORLD, layout=core.layout, causal=core.causal)
        heads = (HEADS, KV_HEADS, KV_HEADS)
        query, key, value = (torch.randn(1, n, block_len, HEAD_DIM) for n in heads)
        own(query, key, value, own.positions(N * block_len))

    return run_ranks(work, N, trace=True).trace


def simulated(trace: Trace, flops_over_bandwidth: float) -> Replay:
    cluster = uniform(N, 0.0, 1e9)
    bandwidth = SLOW.matmul * cluster.accelerator.peak_flops_per_s("bfloat16") / flops_over_bandwidth
    return replay(trace, uniform(N, 0.0, bandwidth), precision="bfloat16", efficiency=SLOW)


@pytest.mark.parametrize("block_len", [32, 128])
def test_the_ring_hides_kv_from_flops_over_bandwidth_on(block_len: int) -> None:
    trace = attention_trace(RingAttention(None, layout="contiguous", causal=False), block_len)
    work = AttentionWork(
        seq_len=N * block_len,
        cp_size=N,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        causal=False,
    )
    for factor in (0.25, 0.5, 0.9, 1.1, 2.0, 8.0):
        flops_over_bandwidth = factor * block_len * HEADS / KV_HEADS
        got = simulated(trace, flops_over_bandwidth)
        flops_per_s = SLOW.matmul * 989.4e12
        cluster = uniform(N, 0.0, flops_per_s / flops_over_bandwidth)
        want = ring_time(work, cluster, range(N), flops_per_s)
        assert got.step_s == pytest.approx(want.total_s, rel=0.02)
        assert got.exposed_s == pytest.approx(want.exposed_s, rel=0.02, abs=0.02 * want.total_s)
        assert (want.exposed_s > 0) == (factor > 1)


def test_zigzag_is_at_least_1_6_times_as_fast_as_contiguous_where_it_is_causal() -> None:
    zigzag, contiguous = (
        simulated(attention_trace(RingAttention(None, layout=layout), 128), 16.0).step_s  # type: ignore[arg-type]
        for layout in ("zigzag", "contiguous")
    )
    assert contiguous / zigzag >= 1.6
