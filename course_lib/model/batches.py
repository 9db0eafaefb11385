"""Deterministic synthetic text, and which rank trains on which samples.

Tokens follow a hidden successor table nine times in ten, so that a model has something to learn and its loss
falls below log V. The ranks' shards of a global batch together are the batch one process sees. Lab 03.
torch's `DistributedSampler` deals samples out in turn and repeats some to make shards equal; here shards may
differ by one sample, and none is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FOLLOW_PROBABILITY = 0.9
IGNORE_INDEX = -100
"""The target of a token that does not count, as in `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True)
class Batch:
    """Hold inputs and next tokens, both int64 [B, S]; targets[:, t] is the token after tokens[:, t].

    A target of IGNORE_INDEX (padding, a prompt) does not count.
    """

    tokens: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, samples: slice | Tensor) -> Batch:
        """Select samples (dim 0)."""
        return Batch(self.tokens[samples], self.targets[samples])


def counted(targets: Tensor) -> Tensor | None:
    """Return which targets count, bool as `targets`; None where all of them are known to.

    Only a CPU's values are looked at: a GPU's would have to be waited for, fake tensors have none.
    """
    if torch.compiler.is_compiling() or targets.is_cuda:
        return targets != IGNORE_INDEX
    # By numpy, so that a trace does not see the question: fake tensors, which have no values, never ask it.
    if type(targets) is not Tensor or bool((targets.numpy() != IGNORE_INDEX).all()):
        return None
    return targets != IGNORE_INDEX


def is_known(answer: Tensor) -> bool:
    """Return a bool scalar's value where it may be looked at, so that a trace does not see it.

    A GPU's makes the program wait; fake tensors (`ranks.fake`) and what is being compiled have none.
    """
    if torch.compiler.is_compiling() or answer.is_cuda:
        return False
    return type(answer) is Tensor and bool(answer.numpy())


def num_counted(targets: Tensor) -> int | Tensor:
    """Return how many targets count, what the mean loss of a batch divides by."""
    counts = counted(targets)
    return targets.numel() if counts is None else counts.sum()


def synthetic_batch(num_samples: int, seq_len: int, vocab_size: int, seed: int = 0) -> Batch:
    """Draw `num_samples` sequences; equal arguments give equal tokens, whatever the global generators did.

    Raises: ValueError for a negative number of samples, or an empty sequence or vocabulary.
    """
    if num_samples < 0 or seq_len < 1 or vocab_size < 1:
        raise ValueError(
            f"num_samples must be >= 0, seq_len and vocab_size >= 1; got num_samples={num_samples}, "
            f"seq_len={seq_len}, vocab_size={vocab_size}. Use positive sizes."
        )
    generator = torch.Generator().manual_seed(seed)
    successor = torch.randperm(vocab_size, generator=generator)
    noise = torch.randint(vocab_size, (num_samples, seq_len + 1), generator=generator)
    follows = torch.rand(num_samples, seq_len + 1, generator=generator) < FOLLOW_PROBABILITY
    text = noise.clone()
    for position in range(1, seq_len + 1):
        text[:, position] = torch.where(
            follows[:, position], successor[text[:, position - 1]], noise[:, position]
        )
    return Batch(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def shard_slice(num_samples: int, rank: int, world_size: int) -> slice:
    """Give rank its consecutive samples; the first num_samples % world_size ranks get one more.

    Raises: ValueError if rank is outside 0 .. world_size - 1.
    """
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank must be in 0 .. world_size - 1; got rank={rank}, world_size={world_size}. "
            "Pass the rank inside the data-parallel group."
        )
    size, larger = divmod(num_samples, world_size)
    start = rank * size + min(rank, larger)
    return slice(start, start + size + (rank < larger))


def shard_batch(batch: Batch, rank: int, world_size: int) -> Batch:
    """Cut out rank's shard: disjoint and complete over ranks; empty on some if samples are too few."""
    return batch[shard_slice(len(batch), rank, world_size)]
