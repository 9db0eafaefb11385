"""Sharded models and their optimizers, saved by some ranks and read by others, against one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checkpoint.fsdp import (
    full_state_dict,
    load_optimizer_state_dict_,
    load_state_dict_,
    optimizer_state_dict,
    sharded_state_dict,
)
from course_lib.model.batches import shard_slice
from course_lib.parallel.fsdp import FSDP
from course_lib.ranks import RanksError, run_ranks

State = dict[str, Tensor]


class Pair(nn.Module):
    """A unit with tied weights and a unit inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.again = nn.Linear(7, 7), nn.Linear(7, 7), nn.Linear(7, 7)
        self.again.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.tanh(self.inner(torch.tanh(self.first(x)))))


class Odd(nn.Module):
    """Tied, half frozen, unused, scalar, transposed parameters and a buffer; sizes no world size divides."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.pair, self.half_frozen = nn.Linear(5, 7), Pair(), nn.Linear(7, 7)
        self.half_frozen.bias.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.gain = nn.Parameter(torch.randn(()))
        self.last = nn.Parameter(torch.randn(7, 3).t())
        self.register_buffer("shift", torch.randn(3))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.pair(torch.tanh(self.first(x)) * self.gain)
        return F.linear(self.half_frozen(h), self.last) + self.shift

    def units(self) -> list[nn.Module]:
        return [self.first, self.pair, self.pair.inner, self.half_frozen, self.unused]


def own_data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    mine = shard_slice(12, dist.get_rank(), dist.get_world_size())
    return x[mine], y[mine]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def copied(state: Any) -> State:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def assert_equal(got: State, want: State) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, msg=lambda text, name=name: f"{name}: {text}")


def save() -> Any:
    module = Odd(seed=3)
    model = FSDP(module, module.units())
    return full_state_dict(model), sharded_state_dict(model)


def load(saved: Any) -> State:
    module = Odd(seed=dist.get_rank())
    model = FSDP(module, [module.first, module.pair])  # other units than those that saved
    load_state_dict_(model, saved)
    return full_state_dict(model)


@pytest.mark.parametrize(("num_saved", "num_loading"), [(1, 3), (2, 4), (3, 2), (4, 1)])
def test_states_load_at_another_world_size(num_saved: int, num_loading: int) -> None:
    want = copied(Odd(seed=3).state_dict())
    saved = run_ranks(save, num_saved)
    for full, _ in saved:
        assert_equal(full, want)
    for state in (saved[0][0], [sharded for _, sharded in saved], want):
        for got in run_ranks(load, num_loading, state):
            assert_equal(got, want)


def checkpoint_after_two_steps() -> Any:
    module = Odd(seed=0)
    model = FSDP(module, module.units())
    optimizer = adamw(model)
    steps(model, optimizer, range(2))
    return sharded_state_dict(model), optimizer_state_dict(model, optimizer)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, indices: range) -> None:
    for step in indices:
        x, y = own_data(step)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def resume(saved: Any) -> State:
    module = Odd(seed=dist.get_rank() + 1)
    model = FSDP(module, [module.pair, module.half_frozen, module.unused])
    optimizer = torch.optim.AdamW(model.parameters(), lr=7.0)
    load_state_dict_(model, [weights for weights, _ in saved])
    load_optimizer_state_dict_(model, optimizer, [state for _, state in saved])
    steps(model, optimizer, range(2, 4))
    return full_state_dict(model)


def train_at_once() -> State:
    module = Odd(seed=0)
    model = FSDP(module, module.units())
    steps(model, adamw(model), range(4))
    return full_state_dict(model)


@pytest.mark.parametrize(("num_saved", "num_resumed"), [(2, 3), (3, 2)])
def test_training_resumes_at_another_world_size(num_saved: int, num_resumed: int) -> None:
    want = run_ranks(train_at_once, 1)[0]
    saved = list(run_ranks(checkpoint_after_two_steps, num_saved))
    for got in run_ranks(resume, num_resumed, saved):
        assert_equal(got, want)


# ---- misuse


def other_model() -> None:
    module = nn.Sequential(nn.Linear(3, 2))
    load_state_dict_(FSDP(module), {"0.weight": torch.zeros(2, 4), "1.bias": torch.zeros(2)})


def saved_optimizer(module: nn.Module) -> tuple[FSDP, torch.optim.Optimizer, list[Any]]:
    """FSDP around a module, its optimizer, and all ranks' states after a step."""
    model = FSDP(module)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    states: list[Any] = [None, None]
    dist.all_gather_object(states, optimizer_state_dict(model, optimizer))
    return model, optimizer, states


def other_models_optimizer() -> None:
    _, _, states = saved_optimizer(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    model, optimizer, _ = saved_optimizer(nn.Sequential(nn.Linear(3, 5, bias=False)))
    load_optimizer_state_dict_(model, optimizer, states)


def other_groups() -> None:
    model, optimizer, states = saved_optimizer(nn.Linear(3, 3))
    states[0]["param_groups"].append({"lr": 1.0})
    load_optimizer_state_dict_(model, optimizer, states)


def missing_ranks() -> None:
    model = FSDP(nn.Linear(3, 3, bias=False))
    states: list[Any] = [None, None]
    dist.all_gather_object(states, sharded_state_dict(model))
    load_state_dict_(FSDP(nn.Linear(3, 3, bias=False)), states[:1])


MISUSES: dict[str, Callable[[], Any]] = {
    r"missing: 0.bias; unexpected: 1.bias; shapes: 0.weight \[2, 4\] for \[2, 3\]": other_model,
    r"unexpected: 0.bias, 1.weight, 1.bias; shapes: 0.weight \[4, 3\] for \[5, 3\]": other_models_optimizer,
    "groups must be this optimizer's; got 2 for 1. Build the optimizer as it was": other_groups,
    "Load the state dicts of all ranks that saved": missing_ranks,
    r"got a call of state_dict\(\). Use full_state_dict": lambda: FSDP(nn.Linear(2, 2)).state_dict(),
    r"got a call of load_state_dict\(\). Use": lambda: FSDP(nn.Linear(2, 2)).load_state_dict({}),
}


@pytest.mark.parametrize(("says", "misuse"), MISUSES.items(), ids=range(len(MISUSES)))
def test_misuse_is_named(says: str, misuse: Callable[[], Any]) -> None:
    with pytest.raises(RanksError, match=says):
        run_ranks(misuse, 2, quiet=True)
