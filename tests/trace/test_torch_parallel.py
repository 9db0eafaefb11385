"""The trace of torch's own parallel code: DTensor and FSDP2, which the course's labs compare with."""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.ranks import run_ranks
from course_lib.trace import mark


def _dtensor_matmul() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    left = distribute_tensor(torch.ones(8, 16), mesh, [Shard(0)])
    right = distribute_tensor(torch.ones(16, 4), mesh, [Replicate()])
    mark("placed")
    (left @ right).full_tensor()


def test_dtensor_counts_once() -> None:
    trace = run_ranks(_dtensor_matmul, 2, trace=True).trace
    for rank in trace.ranks:
        assert rank.flops == 2 * 4 * 16 * 4
        assert rank.launches("all_gather_single")[-1].bytes_ == 4 * 4 * 4


def _fsdp_step() -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 64)).sum().backward()
    mark("backward")
    optimizer.step()


def test_fsdp2_collectives_and_parameters() -> None:
    trace = run_ranks(_fsdp_step, 2, trace=True).trace
    full_bytes = 64 * 64 * 4
    for rank in trace.ranks:
        assert len(rank.launches("all_gather_single")) >= 3
        assert len(rank.launches("reduce_scatter_single")) == 2
        # Two shards of half a layer; the gathered layer is freed after use.
        assert full_bytes <= rank.live_bytes_at("backward", "parameters") <= 2 * full_bytes
        assert rank.live_bytes_at("backward", "gradients") == full_bytes
