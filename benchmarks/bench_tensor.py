"""Measure a tensor-parallel step of ours against DTensor's, interleaved on the same 4 gloo ranks, untraced.

A step is zero_grad, forward, vocabulary-parallel loss and backward; the optimizer, equal for all, is left
out. DTensor's plan prepares the input that q, k, v or gate, up share once, as ours does, and takes
`loss_parallel`. A step takes as long as its slowest rank; a ratio is the median of the ratios within a round,
whose order is shuffled. All losses are equal.
"""

import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from paired import Times, race, ratio

from course_lib.config import ModelConfig
from course_lib.model.batches import synthetic_batch
from course_lib.model.transformer import Transformer
from course_lib.parallel.tensor import shard_transformer_, vocab_parallel_cross_entropy
from course_lib.ranks.launch import run_ranks

Row = tuple[str, float, str, str]

WORLD_SIZE = 4
ROUNDS = 60
WARM_UP_ROUNDS = 3
CONFIG = ModelConfig(
    vocab_size=2048, model_dim=256, num_layers=4, num_heads=8, num_kv_heads=4, ffn_dim=704, max_seq_len=64
)
BATCH = synthetic_batch(4, 64, CONFIG.vocab_size)
Step = Callable[[], torch.Tensor]


def ours(sequence_parallel: bool, overlap: bool = False) -> Step:
    model = Transformer(CONFIG)
    shard_transformer_(model, dist.group.WORLD, sequence_parallel=sequence_parallel, overlap=overlap)

    def step() -> torch.Tensor:
        model.zero_grad()
        loss = vocab_parallel_cross_entropy(model(BATCH.tokens), BATCH.targets, dist.group.WORLD)
        loss.backward()
        return loss

    return step


def with_dtensor(sequence_parallel: bool) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

    model = Transformer(CONFIG)
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    parallelize_module(model, mesh, dtensor_plan(sequence_parallel))

    def step() -> torch.Tensor:
        model.zero_grad()
        with loss_parallel():
            loss = F.cross_entropy(model(BATCH.tokens).flatten(0, 1), BATCH.targets.flatten())
            loss.backward()
        return loss.full_tensor()  # type: ignore[attr-defined]  # a DTensor

    return step


def dtensor_plan(sequence_parallel: bool) -> dict[str, object]:
    """The plan of torchtitan's Llama 3, in the names of the course's model."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    between = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, object] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    for layer in range(CONFIG.num_layers):
        block = f"blocks.{layer}."
        columns = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "ffn.gate_proj", "ffn.up_proj")
        plan |= {block + name: ColwiseParallel() for name in columns}
        plan |= {
            block + name: RowwiseParallel(output_layouts=between)
            for name in ("attention.out_proj", "ffn.down_proj")
        }
        for name, others in (("attention", (None,) * 3), ("ffn", ())):
            plan[block + name] = PrepareModuleInput(
                input_layouts=(between, *others), desired_input_layouts=(Replicate(), *others)
            )
        if sequence_parallel:
            plan |= {block + name: SequenceParallel() for name in ("attention_norm", "ffn_norm")}
    return plan | ({"norm": SequenceParallel()} if sequence_parallel else {})


CONTENDERS: dict[str, Callable[[], Step]] = {
    "ours": lambda: ours(False),
    "DTensor": lambda: with_dtensor(False),
    "ours SP": lambda: ours(True),
    "DTensor SP": lambda: with_dtensor(True),
    "ours SP overlap": lambda: ours(True, True),
}


def measure(rounds: int) -> Times:
    """In a rank: seconds of every step of every contender, those of the slowest rank."""
    steps = {name: make() for name, make in CONTENDERS.items()}
    losses = torch.stack([step().detach() for step in steps.values()])
    torch.testing.assert_close(losses, losses[:1].expand_as(losses))
    return race(steps, rounds, WARM_UP_ROUNDS)[0]


def rows(rounds: int = ROUNDS) -> list[Row]:
    """Give (name, value, unit, note), measured in one run."""
    seconds = run_ranks(measure, WORLD_SIZE, rounds, monitor=False, trace=False, timeout_s=600.0)[0]
    size = f"{CONFIG.num_params / 1e6:.1f} M float32 parameters, {BATCH.tokens.numel()} tokens"
    setting = f"tp={WORLD_SIZE} on gloo, {size}"
    found = [
        (f"TP step, {name}", 1e3 * statistics.median(taken), "ms", setting) for name, taken in seconds.items()
    ]
    for mode in ("", " SP"):
        value, sure = ratio(seconds[f"ours{mode}"], seconds[f"DTensor{mode}"])
        found.append((f"TP step, ours{mode} / DTensor{mode}", value, "x", f"goal: at most 1.0; {sure}"))
    value, sure = ratio(seconds["ours SP overlap"], seconds["ours SP"])
    note = f"4 ranks share 2 cores: nothing is idle to hide behind; {sure}"
    return [*found, ("TP step, ours SP overlap / ours SP", value, "x", note)]


if __name__ == "__main__":
    for name, value, unit, note in rows(20):
        print(f"{name:32} {value:8.2f} {unit:3} {note}")
