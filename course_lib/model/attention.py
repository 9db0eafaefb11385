"""Causal self-attention with rotary positions and grouped key/value heads (GQA).

The only part of a block where tokens meet: all else acts on one token at a time, so batch and sequence split
freely there. Lab 08 splits attention by heads, lab 10 by sequence. Production code (torchtitan,
`models/llama3`) picks a fused kernel per device; the mathematics is unchanged.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig


def rope_tables(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute cos and sin of position x frequency, in float64, then round to `dtype`.

    Layout: positions [S] -> two tables [S, H/2]; pair i turns by theta ** (-2 i / H) radians a position.
    Reference: Su et al., RoFormer (arXiv:2104.09864), section 3.2.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim
    angles = torch.outer(positions.double(), theta**-exponent)  # [S, H/2]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + H/2]) by its position's angle, so that q.k depends on the distance only.

    Layout: x [B, heads, S, H], cos and sin [S, H/2] -> [B, heads, S, H].
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def causal_mask(positions: Tensor) -> Tensor:
    """Let a query see the keys at its own and earlier positions. Layout: positions [S] -> bool [S, S]."""
    return positions[:, None] >= positions[None, :]


class Attention(nn.Module):
    """Mix tokens: softmax(q k^T / sqrt(H) + mask) v, where N / K query heads share a key/value head.

    Layout: x [B, S, D] -> [B, S, D]; weights q [NH, D], k and v [KH, D], out [D, NH], no bias.
    Reference: Ainslie et al., GQA (arXiv:2305.13245).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        kv_dim = config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.model_dim, config.model_dim, bias=False)
        self.k_proj = nn.Linear(config.model_dim, kv_dim, bias=False)
        self.v_proj = nn.Linear(config.model_dim, kv_dim, bias=False)
        self.out_proj = nn.Linear(config.model_dim, config.model_dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        query = apply_rope(self._heads(self.q_proj(x)), cos, sin)  # [B, N, S, H]
        key = apply_rope(self._heads(self.k_proj(x)), cos, sin)  # [B, K, S, H]
        value = self._heads(self.v_proj(x))  # [B, K, S, H]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))  # [B, S, NH] -> [B, S, D]
        return out

    def _heads(self, x: Tensor) -> Tensor:
        heads = x.view(*x.shape[:2], x.shape[-1] // self.head_dim, self.head_dim)
        return heads.transpose(1, 2)  # [B, S, heads * H] -> [B, heads, S, H]
