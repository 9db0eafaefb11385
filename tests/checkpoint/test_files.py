"""Checkpoints in files: read at other world sizes, and refused whole when anything is wrong."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checkpoint import fsdp, zero
from course_lib.checkpoint.files import CheckpointError, Header, load_shards, save_shard, states_for
from course_lib.checkpoint.pieces import Piece
from course_lib.comm.mesh import make_mesh
from course_lib.parallel.fsdp import FSDP
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.ranks import RanksError, run_ranks

State = dict[str, Tensor]

# ---- files, without ranks


def save_all(folder: Path, world_size: int = 3, step: int = 7, numel: int = 9) -> None:
    for rank in range(world_size):
        values = torch.arange(numel // world_size) + rank * (numel // world_size)
        piece = Piece(shape=[numel], offset=rank * len(values), values=values)
        state = {"model": {"weight": piece}, "note": "plain"}
        save_shard(folder, state, rank=rank, mesh={"dp_shard": world_size}, axes=["dp_shard"], step=step)


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    save_all(tmp_path)
    shards = load_shards(tmp_path)
    assert [shard.header.rank for shard in shards] == [0, 1, 2]
    assert shards[1].header.shapes == {"model/weight": [9]}
    assert (shards[1].header.step, shards[1].header.mesh) == (7, {"dp_shard": 3})
    assert shards[2].state["model"]["weight"]["values"].tolist() == [6, 7, 8]
    assert shards[0].state["note"] == "plain"


def flip(folder: Path, place: float) -> None:
    path = folder / "rank-00001.ckpt"
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def cut(folder: Path, kept: float) -> None:
    path = folder / "rank-00001.ckpt"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])


def copy_over(folder: Path) -> None:
    (folder / "rank-00001.ckpt").write_bytes((folder / "rank-00000.ckpt").read_bytes())


def add(folder: Path, **how: int) -> None:
    """Overwrite one file by that of another save."""
    save_all(folder / "other", **how)
    (folder / "other" / "rank-00001.ckpt").replace(folder / "rank-00001.ckpt")


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "rank-00001.ckpt missing, of 3 files": lambda folder: (folder / "rank-00001.ckpt").unlink(),
    "rank-00001.ckpt was changed: its checksum": partial(flip, place=0.9),
    "rank-00001.ckpt was changed:": partial(flip, place=0.1),
    "rank-00001.ckpt does not begin as": partial(flip, place=0.0),
    r"rank-00001.ckpt is cut: \d+ of \d+ bytes": partial(cut, kept=0.9),
    "rank-00001.ckpt does not begin": partial(cut, kept=0.0),
    "rank-00001.ckpt is rank 0's file": copy_over,
    "rank-00001.ckpt is of step 8, rank-00000.ckpt of 7": partial(add, step=8),
    "is of mesh {'dp_shard': 2}, rank-00000.ckpt of {'dp_shard': 3}": partial(add, world_size=2),
    r"rank-00001.ckpt has model/weight of shape \[6\], others of \[9\]": partial(add, numel=6),
}


@pytest.mark.parametrize(("says", "damage"), DAMAGES.items(), ids=range(len(DAMAGES)))
def test_damage_is_named(says: str, damage: Callable[[Path], Any], tmp_path: Path) -> None:
    save_all(tmp_path)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=says) as error:
        load_shards(tmp_path)
    assert "Nothing was loaded" in str(error.value)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    save_all(tmp_path, world_size=1)
    path = tmp_path / "rank-00000.ckpt"
    whole = path.read_bytes()
    for place in range(0, len(whole), 41):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"rank-00000\.ckpt"):
            load_shards(tmp_path)


def test_a_rank_that_dies_while_it_writes_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", dies)
    with pytest.raises(OSError, match="no space left"):
        save_all(tmp_path)
    with pytest.raises(CheckpointError, match=re.escape("must hold files rank-00000.ckpt")):
        load_shards(tmp_path)


def test_each_stage_of_a_pipeline_reads_its_own(tmp_path: Path) -> None:
    mesh = {"pp": 2, "dp_shard": 2}
    for rank in range(4):
        save_shard(tmp_path, {"rank": rank}, rank=rank, mesh=mesh, axes=["dp_shard"])
    shards = load_shards(tmp_path)
    more = {"pp": 2, "dp_shard": 3}
    own = Header(rank=4, mesh=more, axes=["dp_shard"], step=0, shapes={})
    assert [state["rank"] for state in states_for(shards, own)] == [2, 3]
    other = Header(rank=0, mesh={"dp_shard": 4}, axes=["dp_shard"], step=0, shapes={})
    with pytest.raises(CheckpointError, match=r"got a checkpoint of mesh .*pp.* for mesh"):
        states_for(shards, other)
    with pytest.raises(ValueError, match=r"the rank must be one of mesh .*; got 2"):
        save_shard(tmp_path, {}, rank=2, mesh={"pp": 2}, axes=[])


# ---- models and their optimizers


def net(width: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2)).double()


def fsdp_of(width: int = 5, make: Any = torch.optim.AdamW) -> tuple[FSDP, torch.optim.Optimizer]:
    module = net(width)
    shape = {"dp_replicate": 2, "dp_shard": 2} if dist.get_world_size() == 4 else None
    mesh = make_mesh(**(shape or {"dp_shard": dist.get_world_size()}))
    model = FSDP(module, [module[0]], mesh=mesh)
    return model, make(model.parameters(), lr=0.1)


def zero_of(width: int = 5, make: Any = torch.optim.AdamW) -> tuple[nn.Module, ZeroOptimizer]:
    model = net(width)
    return model, ZeroOptimizer(model.parameters(), make, bucket_bytes=100, lr=0.1)


MAKERS: dict[str, tuple[Any, Any]] = {"fsdp": (fsdp, fsdp_of), "zero": (zero, zero_of)}


def whole_model(model: nn.Module) -> State:
    state = fsdp.full_state_dict(model) if isinstance(model, FSDP) else model.state_dict()
    return {name: value.clone() for name, value in state.items()}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> State:
    for step in range(num_steps):  # equal batches: the mean over any number of ranks is the same
        optimizer.zero_grad()
        model(torch.full((2, 3), 1.0 + step, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
    return whole_model(model)


def save_after_two_steps(which: str, folder: Path) -> State:
    """Save, then go on, so that others know what must come."""
    room, make = MAKERS[which]
    model, optimizer = make()
    train(model, optimizer, 2)
    room.save(folder, model, optimizer, step=2)
    return train(model, optimizer, 2)


def go_on(which: str, folder: Path) -> tuple[int, State]:
    room, make = MAKERS[which]
    model, optimizer = make()
    step = room.load_(folder, model, optimizer)
    return step, train(model, optimizer, 2)


@pytest.mark.parametrize("which", MAKERS)
def test_training_goes_on_from_files_at_another_world_size(which: str, tmp_path: Path) -> None:
    for num_saved, num_loading in ((2, 3), (4, 1)):
        folder = tmp_path / str(num_saved)
        want = run_ranks(save_after_two_steps, num_saved, which, folder)[0]
        for step, got in run_ranks(go_on, num_loading, which, folder):
            assert step == 2
            for name, value in want.items():
                torch.testing.assert_close(got[name], value)


def load_wrongly(which: str, folder: Path, wrong: str) -> tuple[str, bool]:
    """Return the message, and whether model and optimizer are as before."""
    room, make = MAKERS[which]
    others: dict[str, dict[str, Any]] = {"width": {"width": 6}, "optimizer": {"make": torch.optim.RMSprop}}
    model, optimizer = make(**others.get(wrong, {}))
    before = train(model, optimizer, 1)
    kept = [value.clone() for state in optimizer.state.values() for value in state.values()]
    try:
        room.load_(folder, model, optimizer)
    except ValueError as error:
        after = whole_model(model)
        now = [value for state in optimizer.state.values() for value in state.values()]
        same = all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))
        return str(error), same and all(torch.equal(after[name], value) for name, value in before.items())
    return "", False


def spoil_optimizer(folder: Path) -> None:
    """A well-formed file without its pieces of exp_avg, one of them of a tensor that rank 0 has a part of."""
    shard = load_shards(folder)[1]
    for entries in shard.state["optimizer"]["state"].values():
        entries.pop("exp_avg", None)
    header = shard.header
    save_shard(folder, shard.state, rank=1, mesh=header.mesh, axes=header.axes, step=header.step)


@pytest.mark.parametrize("which", MAKERS)
def test_nothing_is_half_loaded(which: str, tmp_path: Path) -> None:
    run_ranks(save_after_two_steps, 2, which, tmp_path)
    says = {
        "width": r"shapes: .*0.weight \[5, 3\] for \[6, 3\]",
        "optimizer": "got RMSprop for a saved AdamW",
        "piece": r"must cover all \d+ elements of exp_avg of",
    }
    for wrong, message in says.items():
        if wrong == "piece":
            spoil_optimizer(tmp_path)
        for said, is_as_before in run_ranks(load_wrongly, 2, which, tmp_path, wrong):
            assert re.search(message, said), said
            assert is_as_before


def test_fsdp_goes_on_from_zeros_files_and_zero_names_fsdps(tmp_path: Path) -> None:
    want = run_ranks(save_after_two_steps, 2, "zero", tmp_path / "zero")[0]
    for step, got in run_ranks(go_on, 3, "fsdp", tmp_path / "zero"):
        assert step == 2
        for name, value in want.items():
            torch.testing.assert_close(got[name], value)
    run_ranks(save_after_two_steps, 2, "fsdp", tmp_path / "fsdp")
    for said, is_as_before in run_ranks(load_wrongly, 2, "zero", tmp_path / "fsdp", ""):
        assert "must be a ZeroOptimizer's, saved along ['dp']; got a save along ['dp_shard'" in said
        assert is_as_before


def test_a_damaged_file_is_named_by_the_rank_that_reads_it(tmp_path: Path) -> None:
    run_ranks(save_after_two_steps, 2, "fsdp", tmp_path)
    flip(tmp_path, 0.7)
    with pytest.raises(RanksError, match=r"rank-00001\.ckpt was changed"):
        run_ranks(go_on, 2, "fsdp", tmp_path, quiet=True)
