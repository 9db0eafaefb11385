"""One GPU: MFU of a Llama-style model of 1.2 B parameters in bf16, compiled, and what its matmul reaches.

Without a GPU nothing is measured: one line says so, and an earlier table stays. The profile of three steps is
written for Perfetto beside the temporary files. Fused attention is torch's `scaled_dot_product_attention`.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from course_lib.train import TrainOptions, train

Row = tuple[str, float, str, str]

SKIPPED = "skipped: this machine has no GPU (torch.cuda.is_available() is False)"
OPTIONS = TrainOptions(
    model="llama3.2-1b",
    device="cuda",
    precision="bf16",
    compile=True,
    steps=20,
    batch_size=32,
    microbatch_size=8,
    seq_len=2048,
)
SIZES = (4096, 8192)


def rows() -> list[Row]:
    """Give (name, value, unit, note), measured in one run; nothing without a GPU."""
    return measured(OPTIONS) if torch.cuda.is_available() else []


def measured(options: TrainOptions) -> list[Row]:
    """Train as `options` say; the device's roof, the run's rates, its memory, where its profile is."""
    result = train(options, progress=False)
    gigabytes = torch.cuda.max_memory_allocated() / 1e9 if options.device == "cuda" else 0.0
    roof = max(matmul_flops_per_s(size, options.device) for size in SIZES)
    conditions = f"{options.batch_size} x {options.seq_len} tokens, {options.precision}, {result.peak}"
    return [
        ("MFU", 100 * result.typical("mfu"), "%", f"{conditions}; goal: at least 55 on an H100"),
        ("HFU", 100 * result.typical("hfu"), "%", "fused attention computes its scores again"),
        ("tokens per second", result.typical("tokens_per_s"), "", f"{options.config.num_params / 1e9:.2f} B"),
        ("matmul's roof", roof / 1e12, "TFLOP/s", f"the best of {SIZES}, square"),
        ("roof / peak", 100 * roof / result.peak.flops_per_s, "%", ""),
        ("memory", gigabytes, "GB", "the most that tensors held"),
        ("steps profiled", 3, "", f"trace: {profiled(replace(options, steps=3))}"),
    ]


def matmul_flops_per_s(size: int, device: str, calls: int = 20) -> float:
    """Return the bf16 FLOP/s of a square product, the best of some calls."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best_s = float("inf")
    for _ in range(calls):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        a @ b
        end.record()
        torch.cuda.synchronize()
        best_s = min(best_s, begin.elapsed_time(end) / 1e3)
    return 2 * size**3 / best_s


def profiled(options: TrainOptions) -> Path:
    """Train under torch's profiler; return the file for Perfetto."""
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (options.device == "cuda")
    with profile(activities=kinds) as found:
        train(options, progress=False)
    path = Path(tempfile.gettempdir()) / "train_profile.json"
    found.export_chrome_trace(str(path))
    return path
