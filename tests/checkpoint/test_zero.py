"""The state of ZeroOptimizer, saved by some ranks and read by others, against the plain optimizer's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checkpoint.zero import full_state_dict, load_state_dict_, sharded_state_dict
from course_lib.model.batches import shard_slice
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.ranks import RanksError, run_ranks

State = dict[str, Tensor]


class Odd(nn.Module):
    """Frozen, scalar and transposed parameters whose sizes no world size divides."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = nn.Linear(5, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.gain = nn.Parameter(torch.randn(()))
        self.transposed = nn.Parameter(torch.randn(7, 3).t())
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.frozen(torch.tanh(self.inner(x)) * self.gain), self.transposed)


def data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    return x, torch.randn(12, 3, generator=generator, dtype=torch.float64)


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


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]]) -> None:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for x, y in batches:
        optimizer.zero_grad()
        (F.mse_loss(model(x), y, reduction="sum") / len(x)).backward()
        optimizer.step()
        scheduler.step()


def plain(state: Any) -> Any:
    return {key: value.detach().clone() for key, value in state.items()}


def assert_same_model(got: State, want: State) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, msg=lambda text, name=name: f"{name}: {text}")


def save(world_dir: str) -> dict[str, Any]:
    """In a rank: two steps, then everything a checkpoint needs."""
    model = Odd(seed=0)
    optimizer = ZeroOptimizer(groups(model), torch.optim.AdamW, stage=2, bucket_bytes=500, lr=0.01)
    steps(model, optimizer, [own_data(0), own_data(1)])
    full = full_state_dict(optimizer)
    torch.save(sharded_state_dict(optimizer), f"{world_dir}/{dist.get_rank()}.pt")
    return {"model": plain(model.state_dict()), "full": full, "sharded": sharded_state_dict(optimizer)}


def resume(saved: dict[str, Any], which: str, num_saved: int, world_dir: str) -> State:
    model = Odd(seed=1)
    optimizer = ZeroOptimizer(groups(model), torch.optim.AdamW, stage=1, bucket_bytes=300, lr=7.0)
    model.load_state_dict(saved["model"])
    if which == "full":
        load_state_dict_(optimizer, saved["full"])
    else:
        load_state_dict_(optimizer, [torch.load(f"{world_dir}/{rank}.pt") for rank in range(num_saved)])
    steps(model, optimizer, [own_data(2), own_data(3)])
    return plain(model.state_dict())


@pytest.mark.parametrize("which", ["full", "sharded"])
@pytest.mark.parametrize(("num_saved", "num_resumed"), [(2, 3), (4, 1), (1, 4), (3, 3)])
def test_a_state_dict_loads_at_another_world_size(
    which: str, num_saved: int, num_resumed: int, tmp_path: Any
) -> None:
    model = Odd(seed=0)
    optimizer = torch.optim.AdamW(groups(model), lr=0.01)
    steps(model, optimizer, [data(0), data(1)])
    plain_state = optimizer.state_dict()
    saved = run_ranks(save, num_saved, str(tmp_path))
    torch.testing.assert_close(saved[0]["full"]["state"], plain_state["state"])
    steps(model, optimizer, [data(2), data(3)])
    for got in run_ranks(resume, num_resumed, saved[0], which, num_saved, str(tmp_path)):
        assert_same_model(got, plain(model.state_dict()))


def test_the_plain_optimizers_state_dict_loads() -> None:
    model = Odd(seed=0)
    optimizer = torch.optim.AdamW(groups(model), lr=0.01)
    steps(model, optimizer, [data(0), data(1)])
    saved = {"model": plain(model.state_dict()), "full": optimizer.state_dict()}
    result = run_ranks(resume, 2, saved, "full", 0, "")[1]
    steps(model, optimizer, [data(2), data(3)])
    assert_same_model(result, plain(model.state_dict()))


# ---- misuse


def small() -> ZeroOptimizer:
    return ZeroOptimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD)


def of_another_model() -> None:
    saved = ZeroOptimizer(nn.Linear(3, 4).parameters(), torch.optim.Adam)
    for param in saved.params:
        param.grad = torch.ones_like(param)
    saved.step()
    other = ZeroOptimizer(nn.Linear(3, 3).parameters(), torch.optim.Adam)
    load_state_dict_(other, full_state_dict(saved))


def only_own_pieces() -> None:
    saved = ZeroOptimizer(nn.Linear(3, 3).parameters(), torch.optim.SGD, momentum=0.9)
    for param in saved.params:
        param.grad = torch.ones_like(param)
    saved.step()
    state = [None, None]
    dist.all_gather_object(state, sharded_state_dict(saved))
    load_state_dict_(saved, state[:1])


MISUSES: dict[str, Callable[[], Any]] = {
    r"shapes: 0 \[4, 3\] for \[3, 3\], 1 \[4\] for \[3\]": of_another_model,
    "Load the state dicts of all ranks that saved": only_own_pieces,
    "got groups of": lambda: load_state_dict_(
        small(),
        torch.optim.SGD([nn.Linear(1, 1).bias]).state_dict(),
    ),
    r"got a call of state_dict\(\). Use full_state_dict": lambda: small().state_dict(),
    r"got a call of load_state_dict\(\). Use": lambda: small().load_state_dict({}),
}


@pytest.mark.parametrize(("says", "misuse"), MISUSES.items(), ids=range(len(MISUSES)))
def test_misuse_is_named(says: str, misuse: Callable[[], Any]) -> None:
    with pytest.raises(RanksError, match=says):
        run_ranks(misuse, 2, quiet=True)
