"""Say how a training step is split over devices, as plain numbers or arrays of them.

`cost.memory` and the planner read it. Labs 06, 07 and 12.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from course_lib.cost.constants import Flags, Index
from course_lib.cost.flops import Numbers

SWITCHES = ("sequence_parallel", "reshard_after_forward")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Say how a step is split over devices. Every field may be an array.

    A rank has the mesh coordinates pp, dp_replicate, dp_shard, cp, tp, tp innermost; ranks of one
    expert-parallel group lie along dp_shard and cp, and along tp where no expert is split.
    """

    tp: Numbers = 1
    """Tensor parallel: splits matrices and heads."""
    pp: Numbers = 1
    """Pipeline stages."""
    cp: Numbers = 1
    """Context parallel: splits the sequence."""
    dp_replicate: Numbers = 1
    """Copies of what is sharded."""
    dp_shard: Numbers = 1
    """Ranks that parameters, gradients or optimizer state are sharded over, beside cp."""
    ep: Numbers = 1
    """Expert parallel: splits experts."""
    expert_tp: Numbers | None = None
    """Ranks that split one expert's matrices; those of tp if not given. With 1, the ranks of tp hold
    different experts, and ep counts them, too."""
    sequence_parallel: Numbers | Flags = True
    """Whether norms, too, are split over tp."""
    zero_stage: Numbers | Index = 0
    """0 nothing sharded, 1 optimizer state, 2 gradients too, 3 parameters too (FSDP)."""
    reshard_after_forward: Numbers = True
    """Stage 3: whether gathered parameters are freed after forward; Llama 3 keeps them."""
    microbatch_size: Numbers = 1
    """Sequences of one micro-batch on one rank."""
    num_microbatches: Numbers = 1
    virtual_stages: Numbers = 1
    """Chunks of layers a pipeline rank holds (interleaving)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = np.asarray(getattr(self, field.name))
            if field.name in SWITCHES or getattr(self, field.name) is None:
                continue
            least = 0 if field.name == "zero_stage" else 1
            if value.dtype.kind not in "iuf" or np.any(value < least) or np.any(value != np.floor(value)):
                raise ValueError(
                    f"{field.name} must hold whole numbers of {least} or more; got "
                    f"{getattr(self, field.name)!r}. Count from 1 (zero_stage from 0)."
                )
        if np.any(np.asarray(self.zero_stage) > 3):
            raise ValueError(f"zero_stage must be 0 to 3; got {self.zero_stage!r}. 3 is FSDP.")
