"""The kernels that are timed on one GPU: matmuls, grouped matmuls, attention, a copy.

Sides are those of real layers and of squares, skinny ones too, where a matmul reaches less of the peak.
Numbers are random: a GPU that multiplies zeros draws less power and runs faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib.calibrate.table import Row
from course_lib.calibrate.timing import Call

Sides = tuple[int, int, int]
LARGE_FLOPS = 5e11
"""Matmuls of so many FLOPs are held, too."""
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
UNABLE = (RuntimeError, NotImplementedError, AttributeError, ValueError)
"""What torch raises for a kernel that this GPU or this build has not."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Say what is timed."""

    matmuls: tuple[Sides, ...]
    """rows (tokens), cols, inner."""
    experts: tuple[tuple[int, Sides], ...]
    """How many experts, and the sides of one."""
    attention: tuple[tuple[int, int, int], ...]
    """Heads of one sequence, its tokens, size of a head."""
    copy_bytes: int
    large_flops: float = LARGE_FLOPS


FULL = Sizes(
    matmuls=(
        (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384),
        (8192, 28672, 8192), (8192, 8192, 28672), (8192, 10240, 8192), (8192, 16384, 3328),
        (8192, 13312, 16384), (4096, 28672, 4096), (4096, 4096, 14336), (16384, 2048, 2048),
        (8192, 128256, 4096), (4096, 1024, 8192), (512, 8192, 8192), (1024, 8192, 8192),
        (2048, 8192, 8192), (8192, 512, 8192), (8192, 8192, 512), (8192, 1024, 1024),
    ),
    experts=tuple((16, (rows, 1536, 4096)) for rows in (64, 128, 256, 512, 1024, 2048, 4096)),
    attention=((32, 4096, 128), (32, 8192, 128), (16, 32768, 128), (32, 8192, 64)),
    copy_bytes=2 * 2**30,
)  # fmt: skip
SMALL = Sizes(
    matmuls=((64, 64, 64), (128, 128, 128), (32, 256, 128)),
    experts=((4, (16, 32, 64)),),
    attention=((2, 64, 16),),
    copy_bytes=2**20,
    large_flops=4e6,
)
"""To try the command on a CPU."""


@dataclass(frozen=True)
class Kernel:
    """Hold a row without its seconds, and what makes the call; making it may raise one of UNABLE."""

    row: Row
    make: Callable[[torch.device], Call]
    is_held: bool
    """Whether it is also run for seconds."""


def kernels_of(sizes: Sizes, device: torch.device) -> Iterator[Kernel]:
    """Yield what is timed on one device."""
    one = Row(kind="copy", seconds=1.0, bytes=sizes.copy_bytes)
    yield Kernel(one, lambda on: _copy(sizes.copy_bytes, on), is_held=False)
    precisions = {"bf16": _matmul, "fp8": _matmul_fp8} if device.type == "cuda" else {"bf16": _matmul}
    for precision, make in precisions.items():
        for sides in sizes.matmuls:
            row = _row("matmul", 1, sides, precision=precision)
            yield Kernel(row, lambda on, s=sides, m=make: m(s, on), row.flops >= sizes.large_flops)  # type: ignore[misc]
    how = "grouped" if device.type == "cuda" and hasattr(torch.ops.aten, "_grouped_mm") else "batched"
    for count, sides in sizes.experts:
        experts = _grouped if how == "grouped" else _batched
        yield Kernel(_row(how, count, sides), lambda on, c=count, s=sides, m=experts: m(c, s, on), False)  # type: ignore[misc]
    for heads, tokens, head_dim in sizes.attention:
        for name in BACKENDS if device.type == "cuda" else ("default",):
            for backward in (False, True):
                kind = "attention_backward" if backward else "attention_forward"
                row = replace(_row(kind, heads, (tokens, tokens, head_dim)), how=name)
                shape, flops = (1, heads, tokens, head_dim), 2.0 * heads * tokens**2 * head_dim
                yield Kernel(
                    row,
                    lambda on, s=shape, n=name, b=backward: _attention(s, n, b, on),  # type: ignore[misc]
                    flops >= sizes.large_flops,
                )


def _row(kind: str, groups: int, sides: Sides, precision: str = "bf16") -> Row:
    rows, cols, inner = sides
    return Row(kind=kind, precision=precision, groups=groups, rows=rows, cols=cols, inner=inner, seconds=1.0)


def _randn(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def _copy(size_bytes: int, device: torch.device) -> Call:
    source = torch.zeros(size_bytes // 4, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _matmul(sides: Sides, device: torch.device) -> Call:
    rows, cols, inner = sides
    x, weight = _randn(rows, inner, device=device), _randn(cols, inner, device=device)
    out = torch.empty(rows, cols, device=device, dtype=torch.bfloat16)
    return lambda: torch.mm(x, weight.t(), out=out)


def _matmul_fp8(sides: Sides, device: torch.device) -> Call:
    """Multiply in FP8 with fast accumulation, one scale a tensor; casting is not counted."""
    rows, cols, inner = sides
    x, weight = (_randn(n, inner, device=device).to(torch.float8_e4m3fn) for n in (rows, cols))
    scale = torch.ones((), device=device)

    def call() -> torch.Tensor:
        out: torch.Tensor = torch.ops.aten._scaled_mm(
            x, weight.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return out

    return call


def _grouped(count: int, sides: Sides, device: torch.device) -> Call:
    rows, cols, inner = sides
    x, weight = _randn(count * rows, inner, device=device), _randn(count, cols, inner, device=device)
    ends = torch.arange(rows, count * rows + 1, rows, device=device, dtype=torch.int32)
    return lambda: torch.ops.aten._grouped_mm(x, weight.transpose(1, 2), offs=ends)


def _batched(count: int, sides: Sides, device: torch.device) -> Call:
    rows, cols, inner = sides
    x, weight = _randn(count, rows, inner, device=device), _randn(count, cols, inner, device=device)
    return lambda: torch.bmm(x, weight.transpose(1, 2))


def _attention(shape: tuple[int, ...], how: str, backward: bool, device: torch.device) -> Call:
    q, k, v = (_randn(*shape, device=device).requires_grad_(backward) for _ in range(3))

    def forward() -> torch.Tensor:
        if how == "default":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with sdpa_kernel(BACKENDS[how]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    if not backward:
        return forward
    out = forward()
    of_output = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), of_output, retain_graph=True)
