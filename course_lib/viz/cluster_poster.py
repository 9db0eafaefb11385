"""A poster: every GPU of a run as a cell of a grid, one rank's groups lit, what each axis sends over which "
"link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from course_lib.viz import style

COLORS = {"tp": style.PINK, "cp": style.VERMILLION, "dp": style.GREEN, "pp": style.BLUE}


@dataclass(frozen=True)
class AxisTraffic:
    """Say what a GPU sends along an axis in one step: bytes, how often, over which link."""

    sent_bytes: float
    calls: float
    link: str


def draw_cluster_poster(
    sizes: Mapping[str, int],
    traffic: Mapping[str, AxisTraffic],
    *,
    rank: int = 0,
    row: int = 128,
    title: str = "",
) -> Figure:
    """Draw the mesh with the groups of one rank, and a bar of bytes for each axis.

    Args:
        sizes: ranks along each axis, slowest first; axes of COLORS.
        traffic: axis -> what a GPU sends.
        row: GPUs drawn side by side.

    Raises: ValueError for an axis without a colour, or a rank outside the mesh.
    """
    world_size = prod(sizes.values())
    unknown = [axis for axis in sizes if axis not in COLORS]
    if unknown or not 0 <= rank < world_size:
        raise ValueError(
            f"axes must be among {list(COLORS)} and the rank below {world_size}; got {unknown or rank}. "
            "Correct it."
        )
    groups = {axis: line(axis, sizes, rank) for axis in sizes}
    with style.course_style():
        words = "; ".join(
            f"{axis}: {len(ranks)} GPUs, {traffic[axis].sent_bytes / 1e9:.3g} GB a step over "
            f"{traffic[axis].link}"
            for axis, ranks in groups.items()
            if axis in traffic
        )
        alt = f"A grid of {world_size:,} GPUs, {row} in a row. Lit are the groups of GPU {rank}: {words}."
        figure = style.new_figure(10, 5.4, alt)
        left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
        _draw_grid(left, groups, world_size, row, rank)
        _draw_bars(right, groups, traffic)
        figure.suptitle(title, fontsize=13, fontweight="bold")
    return figure


def line(axis: str, sizes: Mapping[str, int], rank: int) -> list[int]:
    """Return the ranks that differ from `rank` in one axis only; the last axis varies fastest."""
    stride = prod(size for name, size in list(sizes.items())[list(sizes).index(axis) + 1 :])
    start = rank - (rank // stride % sizes[axis]) * stride
    return [start + i * stride for i in range(sizes[axis])]


def _draw_grid(ax: Axes, groups: Mapping[str, Sequence[int]], world_size: int, row: int, rank: int) -> None:
    rows = -(-world_size // row)
    cells = np.zeros(rows * row)
    cells[world_size:] = np.nan
    ax.imshow(cells.reshape(rows, row), cmap=ListedColormap([style.FAINT]), aspect="auto")
    for axis, ranks in sorted(groups.items(), key=lambda item: -len(item[1])):
        places = np.array(ranks)
        ax.scatter(
            places % row, places // row, s=22, marker="s", color=COLORS[axis], label=f"{axis} {len(ranks)}"
        )
    ax.scatter([rank % row], [rank // row], s=60, facecolors="none", edgecolors=style.INK, lw=1.6)
    ax.set_xlabel(f"{row} GPUs in a row: {row // 8} servers of 8")
    ax.set_ylabel("rows")
    ax.set_title(f"The groups of GPU {rank}")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=len(groups))


def _draw_bars(ax: Axes, groups: Mapping[str, Sequence[int]], traffic: Mapping[str, AxisTraffic]) -> None:
    shown = [axis for axis in groups if axis in traffic]
    for place, axis in enumerate(shown):
        one = traffic[axis]
        ax.barh(place, one.sent_bytes / 1e9, height=0.35, color=COLORS[axis])
        ax.annotate(
            f"{one.sent_bytes / 1e9:,.3g} GB in {one.calls:,.0f} calls, {one.link}",
            (0, place),
            xytext=(2, 17),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    ax.set_yticks(range(len(shown)), labels=shown)
    ax.set_xlabel("GB a GPU sends in a step")
    ax.set_title("What each axis costs")
    ax.margins(y=0.25)
