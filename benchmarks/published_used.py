"""Say how many bytes a published run needs by formula: stalls follow from it, and which choices can run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from published import Run, arrays
from published_stages import layers_of_stages

from course_lib.config import ModelConfig
from course_lib.cost.activations import Mode
from course_lib.cost.constants import Array
from course_lib.cost.flops import Recompute, array
from course_lib.cost.memory import Precision, memory_per_gpu
from course_lib.cost.peak import PLAIN, Stack, peak_bytes

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
SIZES = ("D", "F", "N", "K", "L", "V", "gated", "tied", "S", "flash", "recompute", "grad_bytes", "H")
EAGER = Stack(loss_bytes=14)
"""Of each logit nanotron's loss keeps the 16-bit one, its float32 copy, the same less its maximum, and the
exponential."""


def used_bytes(runs: list[Run]) -> Array:
    """Return each rank's memory by formula, at the peak of the worse end.

    nanotron: what PyTorch's autograd saves, gradients in float32 alone (its `FP32GradientAccumulator` drops
    each 16-bit one once it is added), stages by weight. Other stacks: fused kernels; without fused attention
    the scores are stored.
    """
    out = np.zeros(len(runs))
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, run in enumerate(runs):
        key = (run.stack == "nanotron", *(run.sizes.get(name, 0.0) for name in SIZES))
        groups.setdefault(key, []).append(i)
    for members in groups.values():
        group = [runs[i] for i in members]
        out[members] = np.maximum(_peak(group, last=False), _peak(group, last=True))
    return out


def _peak(runs: list[Run], *, last: bool) -> Array:
    sizes, eager = runs[0].sizes, runs[0].stack == "nanotron"
    dim, ffn, heads, layers, vocab, seq_len = (int(sizes[name]) for name in ("D", "F", "N", "L", "V", "S"))
    config = ModelConfig(
        model_dim=dim, ffn_dim=ffn, num_heads=heads, num_kv_heads=int(sizes.get("K", heads)),
        num_layers=layers, vocab_size=vocab, gated_ffn=bool(sizes.get("gated")),
        tied_embeddings=bool(sizes.get("tied")), max_seq_len=seq_len,
        fixed_head_dim=int(sizes["H"]) if "H" in sizes else None,
    )  # fmt: skip
    _, rows, _ = arrays(runs)
    layout = replace(rows, num_microbatches=np.maximum(1, np.floor(rows.num_microbatches)))
    stage = rows.pp - 1 if last else 0 * rows.pp
    stages = [layers_of_stages(run.sizes)[-1 if last else 0] for run in runs] if eager else None
    mode: Mode = "autograd" if eager else "fused" if sizes.get("flash") else "paper"
    kept = memory_per_gpu(
        config, layout, seq_len=seq_len, stage=stage, mode=mode, num_stage_layers=stages and array(stages),
        recompute=RECOMPUTE[int(sizes.get("recompute", 0))],
        precision=Precision(grad_bytes=4 if eager else sizes.get("grad_bytes", 4)),
    )  # fmt: skip
    stack = EAGER if eager else PLAIN
    return np.asarray(
        peak_bytes(config, layout, seq_len=seq_len, stage=stage, resident=kept, stack=stack), dtype=np.float64
    )
