"""Figures of schedules: they say what they show, and count what is in flight as the simulator does."""

from course_lib.schedules import generators
from course_lib.schedules.simulate import StageCosts, Timeline, simulate
from course_lib.viz.schedules import draw_in_flight, draw_schedules, in_flight, peak
from course_lib.viz.style import alternative_text

UNIT = StageCosts(forward_s=1.0, input_s=1.0, weight_s=1.0)


def timelines() -> dict[str, Timeline]:
    return {
        "1F1B": simulate(generators.one_f_one_b(4, 8), UNIT),
        "interleaved": simulate(generators.interleaved(4, 8, 2), UNIT),
        "ZB-H1": simulate(generators.zb_h1(4, 8), UNIT),
    }


def test_a_figure_has_a_panel_a_schedule_and_says_its_numbers() -> None:
    figure = draw_schedules(timelines(), title="4 ranks")
    assert len(figure.axes) == 3
    assert (
        "1F1B on 4 ranks with 8 micro-batches takes 33, 27.3% idle, at most 4 in flight"
        in alternative_text(figure)
    )
    assert "at most 5.5 in flight" in alternative_text(figure)
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert texts == {str(i) for i in range(8)}


def test_in_flight_over_time_peaks_where_the_simulator_says() -> None:
    for timeline in timelines().values():
        for rank in range(4):
            times, held = in_flight(timeline, rank)
            assert times == sorted(times)
            assert held[-1] == 0
            assert max(held) == peak(timeline, rank)
    assert "1F1B: 4" in alternative_text(draw_in_flight(timelines()))
