"""PipeDream's weight versions: how stale they are, and how many a stage keeps."""

import pytest

from course_lib.schedules.actions import Action
from course_lib.schedules.asynchronous import asynchronous, weight_versions
from course_lib.schedules.validate import validate


@pytest.mark.parametrize("p", [1, 2, 4])
def test_staleness_is_the_stages_that_follow(p: int) -> None:
    schedule = asynchronous(p, 8)
    validate(schedule)
    for stage, actions in enumerate(schedule.ranks):
        versions = weight_versions(actions, stage)
        assert versions.most_kept == p - stage
        late = [versions.staleness[i] for i in range(8)]
        assert late == [min(i, p - 1 - stage) for i in range(8)]
        assert versions.used == {i: i - late[i] for i in range(8)}


def test_another_stages_actions_do_not_count_and_order_matters() -> None:
    actions = [Action("F", 0, 0), Action("F", 0, 2), Action("I", 0, 2), Action("W", 0, 2), Action("B", 0, 0)]
    assert weight_versions(actions, 0).staleness == {0: 0}
    with pytest.raises(ValueError, match="must follow its forward"):
        weight_versions([Action("B", 0, 0)], 0)
