"""`tune`: micro-batch x recomputation x DDP, HSDP or FSDP, within the memory of an H100 and with few runs.

Longer than 120 lines: six rules of thumb, each of which must lose at some cluster.
"""

from collections.abc import Callable
from typing import Any

from course_grader.labs.lab07_mfu._tuning import fitting, tuning
from course_grader.parts.numbers import EveryPoint, Point
from course_grader.types import Exercise, Why
from course_lib.cost.trials import Setting

NEAR = 0.03


def _best(point: Point, allowed: Callable[[Setting], bool] = lambda setting: True) -> Setting:
    """The highest MFU among settings that fit and are allowed; among all that fit if none is."""
    fits = fitting(point)
    chosen = [setting for setting in fits if allowed(setting)] or list(fits)
    return max(chosen, key=lambda setting: fits[setting])


def _fastest_of_most(point: Point) -> Setting:
    """Where the micro-batch is as large as any setting's can be."""
    return _best(point, lambda setting: setting[0] == max(size for size, _, _ in fitting(point)))


RULES: dict[str, Callable[[Point], Setting]] = {
    "nothing is ever computed again": lambda p: _best(p, lambda s: s[1] == "none"),
    "everything is always computed again": lambda p: _best(p, lambda s: s[1] == "full"),
    "all GPUs always shard: FSDP": lambda p: _best(p, lambda s: s[2] == max(p["shard_sizes"])),
    "the micro-batch is always 1": lambda p: _best(p, lambda s: s[0] == 1),
    "the micro-batch is always as large as any that fits": _fastest_of_most,
    "as few GPUs shard as can": lambda p: _best(p, lambda s: s[2] == min(k for _, _, k in fitting(p))),
}


def _loses(rule: Callable[[Point], Setting]) -> Callable[[Point], bool]:
    return lambda point: fitting(point)[rule(point)] < (1 - NEAR) * max(fitting(point).values())


EXERCISE = Exercise(
    order=4,
    title="Tune it",
    minutes=20,
    difficulty=3,
    importance=5,
    lines=12,
    points={"memory": 0.5, "clock": 2.5},
    task="Write a function that finds the setting (microbatch_size, recompute, shard_size) with the "
    "highest MFU that fits into a GPU, with few runs.",
    graded={
        "memory": "The setting fits.",
        "clock": "It was run, in no more runs than are paid for, and its MFU is at least 97% of the best "
        "of all that fit.",
    },
    details="At clusters you have not seen: models of 1 to 70 billion parameters on 8 to 512 H100. "
    "max_runs is two for each shard size; all settings are 60 to 120. Asking for memory is free. What "
    "counts is what `run` returned: a setting that was never run is a guess, and the table behind `trials` "
    "is not for you to read.",
    signature="(trials)",
    forbids=("planner",),
    scenario=tuning(74, [_loses(rule) for rule in RULES.values()]),
    hints=(
        "Three loops find it, with too many runs. Which of the three choices need you not try, once the "
        "two others are made? Memory is free to ask.",
        "Keep recomputation and shard size, and double the micro-batch: what happens to the matrices, and to "
        "the gathers per token? So what can you say of two micro-batches that fit, without a run?",
        "Once two choices are made, the third needs no run: memory decides it. How many runs does that "
        "leave, and what do you do where no micro-batch fits?",
    ),
)

OPEN, HIDDEN = [8], [20]


def _choice(point: Point, answer: Any) -> Why | None:
    known = [row[:3] for row in point["settings"]]
    if answer["setting"] in known:
        return None
    return Why(
        "the answer must be (microbatch_size, recompute, shard_size), each one of the choices",
        f"got {answer['setting']!r:.80}",
    )


def _memory(point: Point, answer: Any) -> Why | None:
    needs = next(row[3] for row in point["settings"] if row[:3] == answer["setting"])
    if needs <= point["limit_bytes"]:
        return None
    return Why(f"it must fit into {point['limit_bytes'] / 1e9:.0f} GB", f"it needs {needs / 1e9:.1f} GB")


def _runs(point: Point, answer: Any) -> Why | None:
    if len(answer["tried"]) > point["max_runs"]:
        return Why(
            f"{point['max_runs']} runs are paid for",
            f"{len(answer['tried'])} were booked",
            "Ask for memory first: it is free.",
        )
    if answer["setting"] not in answer["tried"]:
        tried = len(answer["tried"])
        return Why(
            "the setting must be one that was run", f"{answer['setting']} is none of the {tried} that were"
        )
    return None


def _clock(point: Point, answer: Any) -> Why | None:
    fits, setting = fitting(point), tuple(answer["setting"])
    best, reached = max(fits, key=lambda one: fits[one]), fits.get(setting, 0.0)
    if reached >= (1 - NEAR) * fits[best]:
        return None
    return Why(f"the best MFU is {fits[best]:.1%} at {best}", f"{setting} has {reached:.1%}")


def _words(point: Point) -> str:
    return f"{max(point['shard_sizes'])} GPUs, {len(fitting(point))} of {len(point['settings'])} settings fit"


PARTS = [
    EveryPoint(part="values", problem=_choice, describe=_words, gate=True),
    EveryPoint(part="memory", problem=_memory, describe=_words),
    EveryPoint(part="clock", problem=_runs, describe=_words),
    EveryPoint(
        part="clock",
        problem=_clock,
        describe=_words,
        rules=RULES,
        same=lambda a: tuple(a["setting"]),
        answer=lambda p, setting: {"setting": list(setting), "tried": [list(setting)]},
    ),
]
