"""Units: read one way or refused."""

import pytest

from course_lib.units import bytes_of, quantity, show_bytes, show_rate, to_si


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80 GB", 80e9),
        ("80 GiB", 80 * 2**30),
        ("256KiB", 262144),
        ("3.35 TB/s", 3.35e12),
        ("400 Gbit/s", 50e9),
        ("989.4 TFLOP/s", 989.4e12),
        ("1,830 MHz", 1.83e9),
        ("1.9 us", 1.9e-6),
    ],
)
def test_a_quantity_becomes_si(text: str, value: float) -> None:
    assert quantity(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["80", "80 G", "80 gb", "80 Gb", "80 KB", "GB", "80 GB 2", "one GB", ""])
def test_a_unit_that_reads_two_ways_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must .*; got .*\. "):
        quantity(text)


def test_the_nearest_unit_is_suggested() -> None:
    with pytest.raises(ValueError, match="Did you mean GB or GiB"):
        quantity("80 gb")


def test_another_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="in bytes_per_s must have such a unit; got 'GB'"):
        to_si(900, "GB", "bytes_per_s")


@pytest.mark.parametrize("size", [0, -1, float("inf"), float("nan"), True, "0 GB", "-1 GB"])
def test_a_size_is_positive(size: float | str) -> None:
    with pytest.raises(ValueError, match="size must be a positive finite number"):
        bytes_of(size)


def test_showing() -> None:
    assert show_bytes(80e9) == "80 GB"
    assert show_bytes(80e9, binary=True) == "74.5 GiB"
    assert show_rate(989.4e12, "FLOP/s") == "989 TFLOP/s"
