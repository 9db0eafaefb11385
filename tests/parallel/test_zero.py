"""ZeroOptimizer against one process on the whole batch, and against torch's ZeroRedundancyOptimizer."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.comm.launch import run_ranks
from course_lib.model.batches import shard_slice
from course_lib.parallel.zero import ZeroOptimizer

WORLD_SIZES = [1, 2, 3, 4]
NUM_STEPS = 3
State = dict[str, Tensor]
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


class Odd(nn.Module):
    """Tied, frozen, scalar and transposed parameters whose sizes no world size divides."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = nn.Linear(5, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.shared = nn.Linear(7, 7)
        self.again = self.shared
        self.gain = nn.Parameter(torch.randn(()))
        self.transposed = nn.Parameter(torch.randn(7, 3).t())
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.shared(torch.tanh(self.inner(x))) * self.gain) + self.frozen.weight.sum(0)
        return F.linear(self.again(h), self.transposed)


def data(step: int, num_samples: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(num_samples, 5, generator=generator, dtype=torch.float64)
    return x, torch.randn(num_samples, 3, generator=generator, dtype=torch.float64)


def own_data(step: int) -> tuple[Tensor, Tensor]:
    x, y = data(step)
    mine = shard_slice(12, dist.get_rank(), dist.get_world_size())
    return x[mine], y[mine]


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups: vectors and scalars learn faster."""
    params = list(model.parameters())
    return [
        {"params": [p for p in params if p.dim() > 1]},
        {"params": [p for p in params if p.dim() <= 1], "lr": 0.05},
    ]


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]], clip: Any = None
) -> list[float]:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        for x_part, y_part in zip(x.chunk(2), y.chunk(2), strict=True):  # two micro-batches
            loss = F.mse_loss(model(x_part), y_part, reduction="sum") / len(x)
            loss.backward()
            losses.append(loss.item())
        if clip is not None:
            clip(optimizer)
        optimizer.step()
        scheduler.step()
    return losses


def plain(state: Any) -> Any:
    return {key: value.detach().clone() for key, value in state.items()}


def train(name: str, stage: Any, bucket_bytes: int, clips: bool) -> tuple[State, Any]:
    """In a rank: start different, train on the own shard."""
    model = Odd(seed=dist.get_rank())
    make, defaults = OPTIMIZERS[name]
    optimizer = ZeroOptimizer(groups(model), make, stage=stage, bucket_bytes=bucket_bytes, **defaults)
    if dist.get_rank() == 0:
        assert optimizer.param_groups[1]["lr"] == 0.05
    clip = (lambda o: o.clip_grad_norm_(0.5)) if clips else None
    steps(model, optimizer, [own_data(step) for step in range(NUM_STEPS)], clip)
    return plain(model.state_dict()), optimizer.full_state_dict()


def train_oracle(name: str, clips: bool) -> tuple[State, Any]:
    model = Odd(seed=0)
    make, defaults = OPTIMIZERS[name]
    optimizer = make(groups(model), **defaults)
    clip = (lambda _: nn.utils.clip_grad_norm_(model.parameters(), 0.5)) if clips else None
    steps(model, optimizer, [data(step) for step in range(NUM_STEPS)], clip)
    return plain(model.state_dict()), optimizer.state_dict()


def assert_same_model(got: State, want: State) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(
    ("name", "bucket_bytes", "clips"), [("sgd", 500, False), ("adam", 10**6, False), ("adamw", 1, True)]
)
def test_trains_like_one_process(
    name: str, bucket_bytes: int, clips: bool, stage: int, world_size: int
) -> None:
    want, want_state = train_oracle(name, clips)
    for got, got_state in run_ranks(train, world_size, name, stage, bucket_bytes, clips):
        assert_same_model(got, want)
        assert got_state["param_groups"] == want_state["param_groups"]
        assert got_state["state"].keys() == want_state["state"].keys()
        for index, entries in want_state["state"].items():
            torch.testing.assert_close(got_state["state"][index], entries)
