"""A small model with the shape of a transformer's feed-forward blocks, for torch's own sharding."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DIM, HIDDEN, OUT = 12, 16, 10
LEARNING_RATE = 0.1


class FeedForward(nn.Module):
    """x + down_proj(silu(gate_proj(x)) * up_proj(x)), without biases."""

    def __init__(self) -> None:
        """Make three float64 layers."""
        super().__init__()
        self.gate_proj, self.up_proj = (
            nn.Linear(DIM, HIDDEN, bias=False, dtype=torch.float64) for _ in range(2)
        )
        self.down_proj = nn.Linear(HIDDEN, DIM, bias=False, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, DIM] -> [rows, DIM]."""
        out: Tensor = x + self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Toy(nn.Module):
    """Blocks and a head: [rows, DIM] -> [rows, OUT]."""

    def __init__(self, num_blocks: int, weights: Mapping[str, Tensor]) -> None:
        """Take copies of the weights, by parameter name."""
        super().__init__()
        self.blocks = nn.ModuleList(FeedForward() for _ in range(num_blocks))
        self.head = nn.Linear(DIM, OUT, bias=False, dtype=torch.float64)
        with torch.no_grad():
            for name, param in self.named_parameters():
                param.copy_(weights[name])

    def forward(self, x: Tensor) -> Tensor:
        """Through all blocks, then the head."""
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def shapes(num_blocks: int) -> dict[str, tuple[int, int]]:
    """The shape of each parameter, by name."""
    block = {"gate_proj": (HIDDEN, DIM), "up_proj": (HIDDEN, DIM), "down_proj": (DIM, HIDDEN)}
    found = {f"blocks.{i}.{name}.weight": shape for i in range(num_blocks) for name, shape in block.items()}
    return {**found, "head.weight": (OUT, DIM)}
