"""Embedding and loss with the vocabulary shared by a group, so that no rank ever holds the full logits."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from course_lib.comm.autograd import Group, group_rank, group_size, reduce_from, reduce_scatter, run
from course_lib.parallel.tensor.shards import TensorParallel, shard_parameter


class VocabParallelEmbedding(nn.Module):
    """Look up tokens of which each rank has V/tp rows; what a rank has not counts as zero in the sum.

    Layout: tokens int64 [..., S] Replicate -> [..., S, D] Replicate, or [..., S/tp, D] Shard(-2) with
    sequence_parallel; weight [V/tp, D] Shard(0).
    Communication: forward one all_reduce of the output, backward none; with sequence_parallel forward a
    reduce_scatter, backward an all_gather.
    Oracle: the embedding it was made of.
    Raises: ValueError if tp does not divide V; for an embedding with padding_idx, max_norm or sparse.
    """

    def __init__(self, embedding: nn.Embedding, tp: TensorParallel) -> None:
        super().__init__()
        if embedding.padding_idx is not None or embedding.max_norm is not None or embedding.sparse:
            raise ValueError(
                f"an embedding must be a plain table to be cut; got {embedding}. "
                "Leave out padding_idx, max_norm and sparse."
            )
        self.tp = tp
        self.spec = tp.spec("the vocabulary", embedding.num_embeddings, 0)
        self.weight = shard_parameter(embedding.weight, self.spec)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the tokens' rows, whole or this rank's positions of them."""
        if self.tp.size == 1:
            return F.embedding(tokens, self.weight)
        local, outside = _local_ids(tokens, len(self.weight), self.spec.index)
        rows = F.embedding(local, self.weight).masked_fill(outside[..., None], 0.0)
        if self.tp.sequence_parallel:
            return reduce_scatter(rows, self.tp.group, -2)
        return reduce_from(rows, self.tp.group)

    def extra_repr(self) -> str:
        """Show the shapes of this rank."""
        return f"local weight {list(self.weight.shape)}, shard {self.spec.index} of {self.spec.num_shards}"


def vocab_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, group: Group, reduction: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Sum or average -log softmax(logits)[target] over tokens, where each rank has V/tp of the logits.

    loss = log(sum of exp(logit - max)) - (logit[target] - max), the max and the sums over all ranks.
    Layout: logits [..., V/tp] Shard(-1), targets int64 [...] Replicate -> scalar Replicate.
    Communication, T tokens: forward an all_reduce (max) of T elements and one (sum) of 2T; backward none.
    Memory: saves one tensor like the logits. 16-bit logits are computed in float32, and so is the loss.
    Oracle: `model.transformer.cross_entropy` of the full logits.
    Reference: Shoeybi et al. (arXiv:1909.08053), section 3; Megatron-Core `tensor_parallel/cross_entropy.py`.
    Raises: ValueError for unequal shapes, an unknown reduction, or a mean over no token.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits must be targets' shape plus V/tp; got logits {list(logits.shape)}, targets "
            f"{list(targets.shape)}. Give every rank all tokens' targets."
        )
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum'; got {reduction!r}. Choose one of them.")
    if reduction == "mean" and targets.numel() == 0:
        raise ValueError("a mean needs at least one token; got none. Use reduction='sum'.")
    losses: Tensor = run(_CrossEntropy, logits, targets, group)
    return losses.mean() if reduction == "mean" else losses.sum()


def _local_ids(ids: Tensor, num_local: int, index: int) -> tuple[Tensor, Tensor]:
    """Return ids counted from this rank's first row (0 if they are not here), and which are not here."""
    local = ids - index * num_local
    outside = (local < 0) | (local >= num_local)
    return local.masked_fill(outside, 0), outside


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group) -> Tensor:
        local, outside = _local_ids(targets, logits.shape[-1], group_rank(group))
        exact = logits.float() if logits.dtype.itemsize < 4 else logits
        largest = exact.amax(dim=-1, keepdim=True)
        if group_size(group) > 1:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        shifted = exact - largest
        chosen = shifted.gather(-1, local[..., None])[..., 0].masked_fill(outside, 0.0)
        exps = shifted.exp_()
        sums = torch.stack((exps.sum(dim=-1), chosen))  # one message for both
        if group_size(group) > 1:
            dist.all_reduce(sums, group=group)
        softmax = exps.div_(sums[0][..., None])
        ctx.save_for_backward(softmax, local, outside)
        ctx.dtype = logits.dtype
        return sums[0].log() - sums[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        softmax, local, outside = ctx.saved_tensors
        grad = softmax * grads[0][..., None]
        at_target = grads[0].masked_fill(outside, 0.0)[..., None]
        grad.scatter_add_(-1, local[..., None], -at_target)  # softmax - 1 at the target, where it is here
        return grad.to(ctx.dtype), None, None
