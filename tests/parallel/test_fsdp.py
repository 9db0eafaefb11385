"""FSDP and HSDP against one process on the whole batch, and against torch's fully_shard."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.comm.launch import run_ranks
from course_lib.comm.mesh import make_mesh
from course_lib.model.batches import shard_slice
from course_lib.parallel.fsdp import FSDP

WORLD_SIZES = [1, 2, 3, 4]
MESHES = [(1, n) for n in WORLD_SIZES] + [(2, 2), (4, 1), (2, 1)]
NUM_STEPS = 3
State = dict[str, Tensor]


class Pair(nn.Module):
    """A unit with tied weights and a unit inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 7)
        self.inner = nn.Linear(7, 7)
        self.again = nn.Linear(7, 7)
        self.again.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.tanh(self.inner(torch.tanh(self.first(x)))))


class Last(nn.Module):
    """A transposed parameter and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 3).t())
        self.unused = nn.Parameter(torch.randn(11))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Odd(nn.Module):
    """Tied, frozen, unused, scalar, transposed parameters in nested units; sizes no world size divides."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(5, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.pair = Pair()
        self.half_frozen = nn.Linear(7, 7)
        self.half_frozen.bias.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.gain = nn.Parameter(torch.randn(()))
        self.last = Last()
        self.register_buffer("shift", torch.randn(3))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x)) * self.gain
        h = self.half_frozen(self.pair(torch.tanh(self.frozen(h))))
        return self.last(h) + self.shift

    def units(self) -> list[nn.Module]:
        return [self.first, self.frozen, self.pair, self.pair.inner, self.half_frozen, self.unused, self.last]


def data(step: int, num_samples: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(num_samples, 5, generator=generator, dtype=torch.float64)
    return x, torch.randn(num_samples, 3, generator=generator, dtype=torch.float64)


def own_data(step: int) -> tuple[Tensor, Tensor]:
    x, y = data(step)
    mine = shard_slice(12, dist.get_rank(), dist.get_world_size())
    return x[mine], y[mine]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def copied(state: Any) -> State:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def full_gradients(model: FSDP) -> State:
    """Gather gradients by putting them where the weights are."""
    grads: State = {}
    for flat in model._flats():
        full = torch.zeros(flat.layout.padded_numel, dtype=flat.shard.dtype)
        local = torch.zeros_like(flat.shard) if flat.shard.grad is None else flat.shard.grad
        flat.gather_into(full, local)
        if flat.trains:
            views = flat.layout.unflatten(full)
            grads.update({slot.name: view.clone() for slot, view in zip(flat.slots, views, strict=True)})
    return grads


def train(mesh_sizes: tuple[int, int], options: dict[str, Any], sync_all: bool = True) -> Any:
    """In a rank: start different, train in two micro-batches on the own shard."""
    module = Odd(seed=dist.get_rank())
    mesh = make_mesh(dp_replicate=mesh_sizes[0], dp_shard=mesh_sizes[1])
    model = FSDP(module, module.units(), mesh=mesh, **options)
    optimizer = adamw(model)
    history = []
    for step in range(NUM_STEPS):
        x, y = own_data(step)
        optimizer.zero_grad()
        first, second = zip(x.split([1, len(x) - 1]), y.split([1, len(x) - 1]), strict=True)
        outputs = []
        for index, (x_part, y_part) in enumerate([first, second]):
            with model.no_sync() if index == 0 and not sync_all else torch.enable_grad():
                outputs.append(model(x_part))
                (F.mse_loss(outputs[-1], y_part, reduction="sum") / len(x)).backward()
        norm = model.clip_grad_norm_(1.0)
        history.append((torch.cat([out.detach() for out in outputs]), full_gradients(model), norm))
        optimizer.step()
    return history, model.full_state_dict(), sum(p.numel() for p in model.parameters())


def train_oracle() -> Any:
    model = Odd(seed=0)
    optimizer = adamw(model)
    history = []
    for step in range(NUM_STEPS):
        x, y = data(step)
        optimizer.zero_grad()
        out = model(x)
        (F.mse_loss(out, y, reduction="sum") / len(x)).backward()
        model.last.unused.grad = torch.zeros(11, dtype=torch.float64)  # unused in a unit that ran
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        history.append((out.detach(), grads, norm))
        optimizer.step()
    return history, copied(model.state_dict())


def assert_equal(got: State, want: State) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, msg=lambda text, name=name: f"{name}: {text}")


def assert_trains_like_one_process(results: Any) -> None:
    want_history, want_state = train_oracle()
    for rank, (history, state, _) in enumerate(results):
        mine = shard_slice(12, rank, len(results))
        for (out, grads, norm), (want_out, want_grads, want_norm) in zip(history, want_history, strict=True):
            torch.testing.assert_close(out, want_out[mine])
            assert_equal({n: g for n, g in grads.items() if not n.startswith("unused")}, want_grads)
            torch.testing.assert_close(norm, want_norm)
        assert_equal(state, want_state)


@pytest.mark.parametrize("mesh_sizes", MESHES, ids=str)
@pytest.mark.parametrize("placement", ["shards", "owners"])
def test_trains_like_one_process_on_every_mesh(placement: str, mesh_sizes: tuple[int, int]) -> None:
    results = run_ranks(train, mesh_sizes[0] * mesh_sizes[1], mesh_sizes, {"placement": placement})
    assert_trains_like_one_process(results)


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("sync_all", [True, False])
def test_prefetch_and_accumulation_change_no_value(prefetch: int, sync_all: bool) -> None:
    results = run_ranks(train, 4, (2, 2), {"prefetch": prefetch}, sync_all)
    assert_trains_like_one_process(results)
