"""A chain of units is the model, and its explicit backward is autograd's."""

import pytest
import torch
from torch import nn

from course_lib.config import ModelConfig
from course_lib.model.transformer import Transformer, cross_entropy
from course_lib.model.units import Unit, transformer_units

TINY = ModelConfig(model_dim=16, num_layers=2, ffn_dim=24, vocab_size=32)


def run(units: list[Unit], tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = tokens
    for unit in units:
        x = unit.forward(x)
    leaf = x.detach().requires_grad_()
    grad: torch.Tensor | None
    (grad,) = torch.autograd.grad(cross_entropy(leaf, targets), leaf)
    flats = []
    for unit in reversed(units):
        assert grad is not None
        grad, flat = unit.backward(grad)
        assert flat is not None
        flats.insert(0, flat[: unit.numel])
    assert grad is None  # of integer tokens
    return x, torch.cat(flats)


def test_the_chain_equals_the_transformer() -> None:
    tokens, targets = torch.randint(32, (2, 3, 8)).unbind()
    model = Transformer(TINY, seed=3, dtype=torch.float64)
    logits = model(tokens)
    cross_entropy(logits, targets).backward()
    found, grads = run(transformer_units(TINY, seed=3, dtype=torch.float64), tokens, targets)
    torch.testing.assert_close(found, logits.detach())
    torch.testing.assert_close(grads, torch.cat([p.grad.flatten() for p in model.parameters()]))  # type: ignore[union-attr]


@pytest.mark.parametrize("world_size", [1, 2, 3, 50])
def test_shards_are_equal_and_padding_changes_nothing(world_size: int) -> None:
    module = nn.Linear(3, 4).double()
    want = torch.cat([p.detach().flatten() for p in module.parameters()])
    units = [Unit(module) for _ in range(world_size)]
    for rank, unit in enumerate(units):
        unit.cut_(rank, world_size)
        assert unit.full is None
    assert {len(unit.shard) for unit in units} == {-(-16 // world_size)}
    padded = torch.cat([unit.shard for unit in units])
    assert torch.equal(padded[:16], want)
    assert not padded[16:].any()
    unit, x = units[0], torch.ones(2, 3, dtype=torch.float64)
    unit.full = padded
    torch.testing.assert_close(unit.forward(x), module(x).detach())
    _, grad = unit.backward(torch.ones(2, 4, dtype=torch.float64))
    assert grad is not None
    assert len(grad) == len(padded)
    assert not grad[16:].any()


def test_owners_tied_and_frozen() -> None:
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False)).double()
    tied[2].weight = tied[0].weight
    unit = Unit(tied)
    assert unit.numel == 16
    x = torch.ones(1, 4, dtype=torch.float64)
    tied(x).sum().backward()
    unit.forward(x)
    _, grad = unit.backward(torch.ones(1, 4, dtype=torch.float64))
    torch.testing.assert_close(grad, tied[0].weight.grad.flatten())  # type: ignore[union-attr]
    unit.give_(owner=1, rank=0)
    assert (len(unit.shard), unit.owner, unit.full) == (0, 1, None)
    frozen = Unit(nn.Linear(4, 4).double().requires_grad_(False))
    assert not frozen.trains
    frozen.forward(x)
    below, nothing = frozen.backward(torch.ones(1, 4, dtype=torch.float64))
    assert below is not None
    assert nothing is None


def test_misuse_is_named() -> None:
    unit = Unit(nn.Linear(2, 2), "3")
    with pytest.raises(ValueError, match="backward of unit '3' must follow its forward"):
        unit.backward(torch.ones(1, 2))
    unit.full = torch.ones(5)
    with pytest.raises(ValueError, match=r"a vector of its 6 parameters \(and padding\); got shape \[5\]"):
        unit.forward(torch.ones(1, 2))
    unit.full = None
    with pytest.raises(ValueError, match=r"got None\. Gather it first"):
        unit.forward(torch.ones(1, 2))
    with pytest.raises(ValueError, match="got tied_embeddings=True"):
        transformer_units(ModelConfig(tied_embeddings=True))
