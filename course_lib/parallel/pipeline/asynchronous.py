"""Run a pipeline that is never flushed: each stage updates its weights after each backward.

Several micro-batches are in flight, each forward with the weights of its moment, so each needs them again
for its backward: the versions are kept as leaves of their own until then (weight stashing). Lab 09, bonus.
No framework of today trains large models so; PipeDream's own runtime keeps the versions in its optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from course_lib.parallel.pipeline.engine import Pipeline
from course_lib.schedules.actions import Schedule

Version = dict[str, Tensor]
"""Parameter name -> its value at one moment, a leaf that collects that micro-batch's gradient."""


class AsynchronousPipeline(Pipeline):
    """Compute and apply the gradient of every micro-batch by itself, without waiting for the others.

    Stage s works with weights that p - 1 - s updates have not reached yet:
    `schedules.asynchronous.weight_versions` counts them. `step` runs the schedule's micro-batches, each a
    batch of its own.
    Memory: a copy of the stage's weights for each version in flight, p - s of them, beside the weights
    themselves.
    Oracle: one process that computes micro-batch i with stage s's weights after max(0, i - (p - 1 - s))
    updates.
    Reference: Harlap et al., PipeDream (arXiv:1806.03377).
    Raises: ValueError as `Pipeline`, and for tied parameters or split backwards.
    """

    def __init__(
        self,
        chunks: Mapping[int, nn.Module],
        schedule: Schedule,
        optimizers: Mapping[int, torch.optim.Optimizer],
        **options: Any,
    ) -> None:
        """Take this rank's stages and the optimizer of each; options as `Pipeline`."""
        if options.get("tied") is not None or any(a.kind == "I" for own in schedule.ranks for a in own):
            raise ValueError(
                "asynchronous stages must update alone and at once; got tied parameters or split backwards. "
                "Use B and untied embeddings."
            )
        super().__init__(chunks, schedule, **options)
        self.optimizers = dict(optimizers)
        self.most_kept = dict.fromkeys(self.chunks, 0)
        """Stage -> most versions held at once so far."""
        self._in_flight: dict[tuple[int, int], Version] = {}
        self._newest: dict[int, Version] = {}

    def call(self, stage: int, microbatch: int, x: Tensor) -> Tensor:
        """Run a stage with its weights of now, and keep them for this micro-batch's backward."""
        if stage not in self._newest:
            self._newest[stage] = {
                name: param.detach().clone().requires_grad_(param.requires_grad)
                for name, param in self.chunks[stage].named_parameters()
            }
        version = self._in_flight[stage, microbatch] = self._newest[stage]
        held = {id(kept) for (s, _), kept in self._in_flight.items() if s == stage}
        self.most_kept[stage] = max(self.most_kept[stage], len(held))
        out: Tensor = functional_call(self.chunks[stage], version, (x,))
        return out

    def backward_done(self, stage: int, microbatch: int) -> None:
        """Update the stage's weights with this micro-batch's gradient."""
        version = self._in_flight.pop((stage, microbatch))
        for name, param in self.chunks[stage].named_parameters():
            param.grad, version[name].grad = version[name].grad, None
        self.optimizers[stage].step()
        self.optimizers[stage].zero_grad()
        self._newest.pop(stage, None)  # the next forward takes new weights
