"""One file a rank, which says what it holds and of which save it is: damage is named, and nothing loaded.

A file is a first line (format, SHA-256 and size of all that follows), a line of JSON, the header, and the
state as `torch.save` writes it. A file appears under its name when it is whole: a rank that dies while it
writes leaves a missing shard, not half a one.
Simplification: every rank reads all files, so that all refuse alike.
torch.distributed.checkpoint plans who reads what, keeps the shapes of all files in one, and writes beside the
training.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.comm.mesh import rank_to_coords

FORMAT = "course-checkpoint-1"


class CheckpointError(ValueError):
    """Saved files are damaged, missing or not of one save; or of another model or mesh."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a file says of itself.

    rank: that wrote it. mesh: sizes of its axes, slowest first; a file for each of its ranks.
    axes: along which ranks hold parts or copies of the same tensors; along others each has its own.
    shapes: of the whole tensors, by their path in the state: "model/blocks.0.attention.query.weight".
    """

    rank: int
    mesh: dict[str, int]
    axes: list[str]
    step: int
    shapes: dict[str, list[int]]

    @property
    def other_axes(self) -> dict[str, int]:
        """Axes along which each rank has tensors of its own, such as tp and pp."""
        return {axis: size for axis, size in self.mesh.items() if size > 1 and axis not in self.axes}

    @property
    def other_coords(self) -> dict[str, int]:
        """The rank's place along them."""
        coords = rank_to_coords(self.rank, self.mesh)
        return {axis: coords[axis] for axis in self.other_axes}


@dataclass(frozen=True)
class Shard:
    """A file that was read."""

    header: Header
    state: dict[str, Any]


def save_shard(
    folder: Path | str,
    state: Mapping[str, Any],
    *,
    rank: int,
    mesh: Mapping[str, int],
    axes: Sequence[str],
    step: int = 0,
) -> Path:
    """Write what one rank of the mesh holds: tensors, pieces and plain data; return the file's path.

    A folder holds one save: take a new one for the next.
    Raises: ValueError if the rank is not in the mesh.
    """
    if not 0 <= rank < prod(mesh.values()):
        raise ValueError(
            f"the rank must be one of mesh {dict(mesh)}; got {rank}. Give its place in the mesh."
        )
    header = Header(rank=rank, mesh=dict(mesh), axes=list(axes), step=step, shapes=dict(_shapes(state)))
    values = io.BytesIO()
    torch.save(dict(state), values)
    body = json.dumps(asdict(header)).encode() + b"\n" + values.getvalue()
    first = f"{FORMAT} {hashlib.sha256(body).hexdigest()} {len(body)}\n".encode()
    path = Path(folder) / _name(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        file.write(first + body)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return path


def load_shards(folder: Path | str) -> list[Shard]:
    """Read all files of one save, in the order of ranks.

    Raises: CheckpointError that names every missing, cut or changed file, and files of different saves.
    """
    paths = sorted(Path(folder).glob(_name("*")))
    if not paths:
        raise CheckpointError(
            f"a checkpoint must hold files {_name(0)} and so on; got none in {folder}. "
            "Give the folder of one save."
        )
    shards: list[Shard] = []
    wrong: list[str] = []
    for path in paths:
        try:
            shards.append(_read(path))
        except CheckpointError as error:
            wrong.append(str(error))
    if not wrong:
        wrong = _differences(shards)
    wrong += _missing(paths, shards)
    if wrong:
        raise CheckpointError(
            f"a checkpoint must be whole; got, in {folder}: {'; '.join(wrong)}. Nothing was loaded: copy the "
            "named files again, or take an earlier save."
        )
    return shards


def states_for(shards: Sequence[Shard], own: Header) -> list[dict[str, Any]]:
    """Return the states that hold this rank's tensors, cut however they were.

    own: this rank as it would save. Along its `axes` any number of ranks may have saved.
    Raises: CheckpointError if the meshes differ along other axes.
    """
    saved = shards[0].header
    if saved.other_axes != own.other_axes:
        raise CheckpointError(
            f"ranks along axes other than {own.axes} must be as many as saved; got a checkpoint of mesh "
            f"{saved.mesh} for mesh {own.mesh}. Nothing was loaded: "
            "use a mesh like the saved one along them, or save whole tensors first."
        )
    return [shard.state for shard in shards if shard.header.other_coords == own.other_coords]


def _name(rank: int | str) -> str:
    return f"rank-{rank:05d}.ckpt" if isinstance(rank, int) else f"rank-{rank}.ckpt"


def _shapes(state: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, list[int]]]:
    """Yield path and shape of each tensor, also of those that are here in pieces."""
    for key, value in state.items():
        if isinstance(value, Tensor):
            yield f"{path}{key}", list(value.shape)
        elif isinstance(value, Mapping) and {"shape", "offset", "values"} == value.keys():
            yield f"{path}{key}", list(value["shape"])
        elif isinstance(value, Mapping):
            yield from _shapes(value, f"{path}{key}/")


def _read(path: Path) -> Shard:
    """Read a file, and trust it only when the checksum is right."""
    first, _, body = path.read_bytes().partition(b"\n")
    words = first.decode("ascii", "replace").split(" ")
    if len(words) != 3 or words[0] != FORMAT or not words[2].isdigit():
        raise CheckpointError(f"{path.name} does not begin as a {FORMAT} file")
    if len(body) < int(words[2]):
        raise CheckpointError(f"{path.name} is cut: {len(body)} of {words[2]} bytes")
    if hashlib.sha256(body).hexdigest() != words[1]:
        raise CheckpointError(f"{path.name} was changed: its checksum is another")
    line, _, values = body.partition(b"\n")
    header = Header(**{field.name: json.loads(line)[field.name] for field in fields(Header)})
    if path.name != _name(header.rank):
        raise CheckpointError(f"{path.name} is rank {header.rank}'s file")
    return Shard(header, torch.load(io.BytesIO(values), map_location="cpu", weights_only=True))


def _differences(shards: Sequence[Shard]) -> list[str]:
    """Say which files are not of the first one's save, or know other shapes of the same tensor."""
    first, wrong = shards[0].header, []
    known: dict[str, list[int]] = {}
    for header in (shard.header for shard in shards):
        for what in ("mesh", "axes", "step"):
            ours, theirs = getattr(first, what), getattr(header, what)
            if ours != theirs:
                wrong.append(f"{_name(header.rank)} is of {what} {theirs}, {_name(first.rank)} of {ours}")
        if header.other_coords != first.other_coords:
            continue
        for path, shape in header.shapes.items():
            if known.setdefault(path, shape) != shape:
                wrong.append(f"{_name(header.rank)} has {path} of shape {shape}, others of {known[path]}")
    return wrong


def _missing(paths: Sequence[Path], shards: Sequence[Shard]) -> list[str]:
    """Say which files of the mesh are not there."""
    if not shards:
        return []
    here = {path.name for path in paths}
    names = [_name(rank) for rank in range(prod(shards[0].header.mesh.values()))]
    absent = [name for name in names if name not in here]
    return [f"{', '.join(absent)} missing, of {len(names)} files"] if absent else []
