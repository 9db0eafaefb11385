"""What techniques that shard the model share: the norm of gradients of which each rank holds a part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def clip_sharded_norm_(
    grads: Sequence[Tensor], max_norm: float, device: torch.device, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Scale shards of gradients so that the 2-norm over all ranks is at most max_norm; return it.

    Communication: one all_reduce of one float64. A NaN anywhere makes all gradients NaN, as torch's
    clip_grad_norm_ does.
    """
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for grad in grads:
        squares += grad.double().square().sum()
    if dist.get_world_size(group) > 1:
        dist.all_reduce(squares, group=group)
    norm = squares.sqrt()
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for grad in grads:
        grad.mul_(scale.to(grad.dtype))
    return norm
