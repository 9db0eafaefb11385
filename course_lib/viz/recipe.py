"""Pictures of lab 07's second half: the scaling recipe as a chart, and the game of tuning."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from course_lib.cost.trials import Setting, Trials
from course_lib.viz import style

Question = tuple[str, str, str]
RECIPE: tuple[Question, ...] = (
    (
        "Do all states fit one GPU?\n(16 bytes per parameter: up to about 1 B)",
        "yes",
        "DDP\nup to some 128 GPUs",
    ),
    ("If not: do shards of them fit?\n(more than 1 B parameters)", "yes", "FSDP / ZeRO\nover all GPUs"),
    ("Do activations still fill memory?", "yes", "smaller micro-batch, then\nrecompute (lab 06)"),
    ("More than 256 to 512 GPUs?", "yes", "HSDP: shard inside,\nreplicate across"),
    (
        "More than 1,000 GPUs, 50 B parameters\nor 10 K tokens?",
        "yes",
        "add TP in a server, PP across,\nCP for the sequence",
    ),
    ("Long sequences? A mixture of experts?", "yes", "CP first (lab 10);\nEP besides (lab 11)"),
)


def draw_recipe() -> style.CourseFigure:
    """Draw which technique to add when, asked from top to bottom; each answer is added to those above."""
    words = [f"{question} {answer}: {add}" for question, answer, add in RECIPE]
    alt = "The scaling recipe. " + "; ".join(" ".join(text.split()) for text in words) + "."
    with style.course_style():
        figure = style.new_figure(6.2, 3.8, alt)
        ax = figure.subplots()
        ax.set(xlim=(0, 10), ylim=(-len(RECIPE) + 0.4, 0.75))
        ax.axis("off")
        for row, (question, answer, add) in enumerate(RECIPE):
            _box(ax, 2.7, -row, 4.9, question, style.CARD)
            _box(ax, 8.1, -row, 3.5, add, style.FAINT)
            ax.annotate("", (6.33, -row), (5.18, -row), arrowprops={"arrowstyle": "->", "color": style.INK})
            ax.text(5.75, -row + 0.08, answer, ha="center", va="bottom", fontsize=8)
            if row + 1 < len(RECIPE):
                arrow = {"arrowstyle": "->", "color": style.INK}
                ax.annotate("", (2.7, -row - 0.68), (2.7, -row - 0.32), arrowprops=arrow)
        ax.set_title("Take one of the first two, then add what the others ask for")
    return figure


def _box(ax: Axes, x: float, y: float, width: float, text: str, color: str) -> None:
    corner, height = (x - width / 2, y - 0.31), 0.62
    box = FancyBboxPatch(
        corner, width, height, boxstyle="round,pad=0,rounding_size=0.1", fc=color, ec=style.INK
    )
    ax.add_patch(box)
    ax.text(x, y, text, ha="center", va="center", fontsize=8)


def draw_trials(trials: Trials, setting: Setting) -> style.CourseFigure:
    """Draw a setting's memory beside the limit, and every run so far: its MFU, or that it did not fit."""
    needs = trials.memory_bytes(*setting)
    fits = needs <= trials.limit_bytes
    state = f"MFU {trials.reached[setting]:.1%}" if fits else "out of memory"
    size, recompute, shard = setting
    alt = f"Micro-batch {size}, recompute {recompute}, shard {shard}: {needs / 1e9:.0f} GB, {state}. "
    alt += f"{len(trials.tried)} of {trials.max_runs} runs used."
    with style.course_style():
        figure = style.new_figure(7.6, 3.0, alt)
        bar, *grids = figure.subplots(1, 1 + len(trials.recomputes), width_ratios=[0.7, 2, 2])
        bar.bar(0, needs / 1e9, color=style.BLUE if fits else style.VERMILLION)
        bar.axhline(trials.limit_bytes / 1e9, color=style.INK, lw=2)
        bar.set(xticks=[], ylabel="GB of one GPU", ylim=(0, max(needs, 1.3 * trials.limit_bytes) / 1e9))
        bar.set_title(state, fontsize=10)
        for ax, kind in zip(grids, trials.recomputes, strict=True):
            _grid(ax, trials, kind, setting)
        figure.suptitle(f"{len(trials.tried)} of {trials.max_runs} runs used", fontsize=10)
    return figure


def _grid(ax: Axes, trials: Trials, kind: str, setting: Setting) -> None:
    for size, recompute, shard in dict.fromkeys([*trials.tried, setting]):
        if recompute != kind:
            continue
        x, y = trials.shard_sizes.index(shard), trials.microbatch_sizes.index(size)
        mfu = trials.reached[size, recompute, shard]
        fits = trials.memory_bytes(size, recompute, shard) <= trials.limit_bytes
        color = (*[1 - mfu] * 2, 1.0) if fits else style.VERMILLION
        is_now = (size, recompute, shard) == setting
        edge = style.INK if is_now else "none"
        ax.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, fc=color, ec=edge, lw=2.5))
        words = f"{100 * mfu:.0f}" if fits else "OOM"
        ax.text(
            x,
            y,
            words,
            ha="center",
            va="center",
            fontsize=8,
            color="white" if mfu > 0.35 or not fits else style.INK,
        )
    ax.set_xticks(range(len(trials.shard_sizes)), labels=[str(n) for n in trials.shard_sizes], fontsize=8)
    ax.set_yticks(range(len(trials.microbatch_sizes)), labels=[str(n) for n in trials.microbatch_sizes])
    ax.set(xlim=(-0.6, len(trials.shard_sizes) - 0.4), ylim=(-0.6, len(trials.microbatch_sizes) - 0.4))
    ax.set(xlabel="GPUs that share one copy", ylabel="micro-batch")
    ax.set_title(f"MFU in %, recompute {kind}", fontsize=10)
