"""Times and rates of calls in the runtime info: the original's texts."""

from __future__ import annotations

from decimal import Decimal

import pytest

from broker_gateway.api.remoting.administration.call_rates import CallRates, Counts
from broker_gateway.observability.call_times import CallTimes


def a_minute(*calls: tuple[float, int]) -> CallTimes:
    times = CallTimes()
    times.roll(1)
    for seconds, count in calls:
        times.add(seconds, count)
    times.roll(60_001)
    return times


def test_the_distribution_is_of_the_last_minute() -> None:
    times = CallTimes()
    times.roll(1)
    times.add(0.0098, 3)
    assert times.distribution() == "null"
    times.roll(30_000)
    assert times.distribution() == "null", "the minute is not over"
    times.roll(60_001)
    assert times.distribution().startswith("[<=0ms]:0 [0~10ms]:3 [10~50ms]:0 [50~100ms]:0 ")
    assert times.distribution().endswith("[5~10s]:0 [10s~]:0 ")
    times.roll(120_001)
    assert "3" not in times.distribution().split(" ")[1].split(":")[1]
    assert times.longest_ms == 9


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], 0.0),
        ([(0.0, 100)], 0.99),
        ([(0.010, 100)], 9.99),
        ([(0.001, 90), (0.150, 10)], 149.0),
        ([(60.0, 1), (0.0, 999)], 990 / 999),
        ([(60.0, 100)], 10_000.0),
    ],
)
def test_percentiles(calls: list[tuple[float, int]], expected: float) -> None:
    assert a_minute(*calls).percentile_ms(0.99) == pytest.approx(expected)


def test_ranges_end_before_their_upper_bound() -> None:
    found = a_minute((0.010, 1), (0.050, 1), (0.499, 1), (1.0, 1), (10.0, 1)).distribution().split()
    counted = [each.split(":")[0] for each in found if each.endswith(":1")]
    assert counted == ["[10~50ms]", "[50~100ms]", "[200~500ms]", "[1~2s]", "[10s~]"]


def test_rates_are_three_numbers_from_the_first_moment_on() -> None:
    rates = CallRates()
    assert rates.text("found", "missed") == "0.0 0.0 0.0"
    rates.sample(0, Counts())
    assert rates.text("put") == "0.0 0.0 0.0"
    for number in range(1, 100):
        rates.sample(number * 10_000, Counts(put=number * 20, found=number, missed=(number // 90) * 6))
    assert rates.text("put") == "2.0 2.0 2.0"
    found = [Decimal(each) for each in rates.text("found", "missed").split(" ")]
    assert [float(each) for each in found] == pytest.approx([0.1, 0.1, 0.11])
