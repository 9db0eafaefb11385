"""Judge's half of `own_numbers`: both calls, and windows around each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_grader.parts.common import Window
from course_grader.types import Array, Case, Expected, Scenario

CALLS = [Window("call 0", "call 1", "the first call"), Window("call 1", "ends", "the second call")]
WORDS = ("", " of the second call")


def case(world_size: int, label: str = "") -> Case:
    """A world in which every rank has numbers of its own."""
    return Case(world_size=world_size, label=label)


def own_numbers(
    *,
    inputs: Callable[[Case, int], dict[str, Array]],
    arguments: Sequence[str],
    returns: Sequence[str],
    whole: bool = False,
) -> Scenario:
    """impl(*arguments) -> the results, called twice.

    Args:
        inputs: (case, rank) -> each argument's values, one per call.
        whole: arguments and results are ints.
    """
    return Scenario(
        rank_side="course_grader.inside.programs.lab00:own_numbers",
        inputs=inputs,
        options={
            "arguments": list(arguments),
            "returns": list(returns),
            "whole": whole,
            "overwrites": not whole,
        },
        returned=lambda case: [("call 1", "the first call returns"), ("ends", "the second call returns")],
    )


def of_both_calls(world: Callable[[int], Expected]) -> Expected:
    """The results of both calls under their names. world: number of the call -> its results."""
    return {name + words: v for call, words in enumerate(WORDS) for name, v in world(call).items()}
