"""Published models: as many parameters as published."""

import pytest

from course_lib.cost.models import model, models, published_runs
from course_lib.cost.tables import rows

PUBLISHED = {  # parameters, within what a ModelConfig cannot say
    "llama3.2-1b": (1.236e9, 0.0005),
    "llama3-8b": (8.03e9, 0.0005),
    "llama3-70b": (70.55e9, 0.0005),
    "llama3-405b": (405.85e9, 0.0005),
    "gpt3-175b": (174.6e9, 0.001),
    "megatron-1.7b": (1.7e9, 0.05),
    "megatron-22b": (22e9, 0.01),
    "megatron-145b": (145.6e9, 0.001),
    "megatron-310b": (310.1e9, 0.001),
    "megatron-530b": (529.6e9, 0.001),
    "megatron-1t": (1008.0e9, 0.001),
    "palm-540b": (540.35e9, 0.0001),
    "mixtral-8x7b": (46.7e9, 0.001),
    "deepseek-v3-like": (671e9, 0.006),
}
ACTIVE = {"mixtral-8x7b": (12.9e9, 0.005), "deepseek-v3-like": (37e9, 0.1), "llama3-8b": (8.03e9, 0.001)}


@pytest.mark.parametrize("name", models())
def test_models_are_as_large_as_published(name: str) -> None:
    if name in PUBLISHED:
        size, tolerance = PUBLISHED[name]
        assert model(name).num_params == pytest.approx(size, rel=tolerance)
    if name in ACTIVE:
        size, tolerance = ACTIVE[name]
        assert model(name).num_active_params == pytest.approx(size, rel=tolerance)


@pytest.mark.parametrize("table", ["models.csv", "published_mfu.csv"])
def test_every_row_has_a_source(table: str) -> None:
    keys = {row["key"] for row in rows("sources.csv")}
    assert {row["source"] for row in rows(table)} <= keys


def test_runs_name_models_of_the_table() -> None:
    assert {run.model for run in published_runs()} <= set(models())
