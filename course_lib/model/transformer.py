"""A small Llama-style decoder: embedding, L blocks of attention and SwiGLU, output head; RMSNorm before each.

Every lab trains this model, and one process running it is the oracle of all parallel versions. Weights
depend on the seed alone, never on torch's global generator, the dtype or the device. Production code:
torchtitan `models/llama3`, Megatron-Core `models/gpt`; they add fused kernels and initialisation on the meta
device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.model.attention import Attend, Attention, rope_tables, sdpa
from course_lib.model.batches import counted, is_known
from course_lib.model.moe import MoE

INIT_STD = 0.02


class RMSNorm(nn.Module):
    """Scale each token to root mean square 1, then by a learnt weight: x / sqrt(mean(x^2) + eps) * weight.

    Layout: x [..., D] -> [..., D]; weight [D]. Reference: Zhang & Sennrich (arXiv:1910.07467).
    """

    def __init__(self, model_dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(model_dim))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight over the last dim."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


class SwiGLU(nn.Module):
    """Transform each token alone: down(silu(gate(x)) * up(x)).

    Layout: x [B, S, D] -> [B, S, D]; gate and up [F, D], down [D, F]. Reference: Shazeer (arXiv:2002.05202).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.model_dim, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.model_dim, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.model_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class GeluFFN(nn.Module):
    """Transform each token alone without a gate: down(gelu(up(x))), as GPT-2 and GPT-3.

    Layout: x [B, S, D] -> [B, S, D]; up [F, D], down [D, F], no bias.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.model_dim, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.model_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """Add attention, then the feed-forward network, to the residual stream [B, S, D]."""

    def __init__(self, config: ModelConfig, attend: Attend = sdpa, layer: int = 0) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.model_dim, config.norm_eps)
        self.attention = Attention(config, attend)
        self.ffn_norm = RMSNorm(config.model_dim, config.norm_eps)
        self.ffn = feed_forward(config, layer)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, positions)
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out


def feed_forward(config: ModelConfig, layer: int) -> nn.Module:
    """Return a layer's feed-forward network: SwiGLU, GELU, or experts after the dense layers."""
    if config.num_experts and layer >= config.num_dense_layers:
        return MoE(config)
    return SwiGLU(config) if config.gated_ffn else GeluFFN(config)


class Transformer(nn.Module):
    """Predict the next token at every position.

    Layout: tokens int64 [B, S] -> logits [B, S, V].
    Memory: config.num_params elements; tied_embeddings makes `head.weight` and `embedding.weight` one
    parameter.
    `attend` mixes the tokens in every block; the default sees one process's whole sequence.
    Raises: ValueError for tokens that are not [B, S], or longer than max_seq_len; for `positions` that are
    not one per token, or out of order without a core that looks at them.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        attend: Attend = sdpa,
    ) -> None:
        super().__init__()
        self.config = config
        self.attend = attend
        with default_dtype(dtype):
            self.embedding = nn.Embedding(config.vocab_size, config.model_dim)
            self.blocks = nn.ModuleList(Block(config, attend, i) for i in range(config.num_layers))
            self.norm = RMSNorm(config.model_dim, config.norm_eps)
            self.head = nn.Linear(config.model_dim, config.vocab_size, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.embedding.weight
        init_weights_(self, seed)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Compute logits [B, S, V]; `positions` [S] are 0 .. S-1 unless given."""
        self._check_tokens(tokens)
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        else:
            self._check_positions(positions, tokens.shape[1])
        x = self.embedding(tokens)  # [B, S, D]
        cos, sin = rope_tables(positions, self.config.head_dim, self.config.rope_theta, x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin, positions)
        logits: Tensor = self.head(self.norm(x))  # [B, S, V]
        return logits

    def _check_tokens(self, tokens: Tensor) -> None:
        if tokens.dim() != 2 or tokens.shape[1] > self.config.max_seq_len:
            raise ValueError(
                f"tokens must be [B, S] with S <= max_seq_len={self.config.max_seq_len}; got shape "
                f"{list(tokens.shape)}. Add the batch dim or cut the sequence."
            )

    def _check_positions(self, positions: Tensor, seq_len: int) -> None:
        if positions.shape != (seq_len,):
            raise ValueError(
                f"positions must be [S], one per token; got shape {list(positions.shape)} for S={seq_len}. "
                "Pass the place of each local token in the whole sequence."
            )
        outside = ((positions < 0) | (positions >= self.config.max_seq_len)).any()
        if type(outside) is Tensor and bool(outside):  # fake tensors have no values
            raise ValueError(
                f"positions must be 0 .. max_seq_len - 1 = {self.config.max_seq_len - 1}; got "
                f"{int(positions.min())} to {int(positions.max())}. Cut the sequence or raise max_seq_len."
            )
        if self.attend is sdpa and bool((positions.diff() <= 0).any()):
            raise ValueError(
                f"the default core needs tokens in the order of their positions; got {positions.tolist()}. "
                "Sort the tokens, or pass attend= with a core that looks at positions (lab 10)."
            )


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new parameters in `dtype` at once: a cast afterwards needs both, and fake tensors refuse it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def init_weights_(model: Transformer, seed: int) -> None:
    """Fill norms with 1, matrices with N(0, 0.02^2), those that write to the residual stream with less.

    Their std is 0.02 / sqrt(2 L), as GPT-2. Drawn in float64 on the CPU in parameter order: one seed gives
    the same weights, up to rounding, everywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    residual_std = INIT_STD / math.sqrt(2 * model.config.num_layers)
    for name, param in model.named_parameters():
        if param.dim() == 1:
            param.fill_(1.0)
            continue
        is_last = name.endswith(("out_proj.weight", "down_proj.weight", ".down"))
        std = residual_std if is_last else INIT_STD
        param.copy_(torch.randn(param.shape, generator=generator, dtype=torch.float64) * std)


def cross_entropy(logits: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """Sum or average -log softmax(logits)[target] over tokens, as logsumexp(logits) - logits[target].

    Layout: logits [..., V], targets int64 [...] -> scalar. Targets of -100 do not count. For shards with
    unequal numbers of tokens the mean of the means is not the mean: divide the sum by the whole batch's
    `num_counted` instead.
    Raises: ValueError for unequal shapes, an unknown reduction, a target outside the vocabulary, or a mean
    over no token.
    """
    counts = check_targets(logits, targets, logits.shape[-1], reduction)
    index = targets if counts is None else targets.where(counts, 0)
    chosen = logits.gather(-1, index[..., None])[..., 0]  # [...]
    return reduce_losses(torch.logsumexp(logits, dim=-1) - chosen, counts, reduction)


def check_targets(logits: Tensor, targets: Tensor, vocab_size: int, reduction: str) -> Tensor | None:
    """Refuse what has no loss; return which targets count (`batches.counted`).

    A target outside the vocabulary on a GPU ends in the kernel's own assertion instead.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits must be targets' shape plus the vocabulary dim; got logits {list(logits.shape)}, "
            f"targets {list(targets.shape)}. Do not flatten one without the other."
        )
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum'; got {reduction!r}. Choose one of them.")
    if reduction == "mean" and targets.numel() == 0:
        raise ValueError("a mean needs at least one token; got an empty shard. Use reduction='sum'.")
    counts = counted(targets)
    outside = (targets < 0) | (targets >= vocab_size)
    outside = outside if counts is None else outside & counts
    if is_known(outside.any()):
        raise ValueError(
            f"targets must be 0 .. V - 1 = {vocab_size - 1}, or -100 not to count; got "
            f"{int(targets[outside][0])}. Check the tokenizer and the padding."
        )
    if reduction == "mean" and counts is not None and is_known(~counts.any()):
        raise ValueError("a mean needs a token that counts; got only -100. Use reduction='sum'.")
    return counts


def reduce_losses(losses: Tensor, counts: Tensor | None, reduction: str) -> Tensor:
    """Sum or average the losses of the targets that count."""
    if counts is None:
        return losses.mean() if reduction == "mean" else losses.sum()
    total = losses.where(counts, 0.0).sum()
    return total / counts.sum() if reduction == "mean" else total
