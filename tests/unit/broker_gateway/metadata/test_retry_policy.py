"""Retry policies as configurations have them: how long each wait is, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from broker_gateway.metadata.kept_fields import ConfigurationError
from broker_gateway.metadata.retry_policy import (
    DEFAULT,
    LONGEST_MS,
    CustomizedPolicy,
    ExponentialPolicy,
    check,
    policy_of,
)


def test_a_customized_policy_begins_with_its_third_step_and_stays_at_the_last() -> None:
    policy = policy_of({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2, 30, 40]}})
    assert [policy.wait_ms(attempt) for attempt in (0, 1, 2, 3, 1000)] == [30, 30, 40, 40, 40]
    assert policy_of({"customizedRetryPolicy": {"next": [7]}}).wait_ms(1) == 7
    assert [DEFAULT.wait_ms(attempt) for attempt in (1, 2, 16, 17)] == [10_000, 30_000, 7_200_000, 7_200_000]


def test_an_exponential_policy_grows_to_its_maximum() -> None:
    policy = policy_of(
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 10, "max": 100, "multiplier": 3}}
    )
    assert [policy.wait_ms(attempt) for attempt in (0, 1, 2, 3, 4, 1 << 31)] == [10, 10, 30, 90, 100, 100]
    usual = policy_of({"type": "EXPONENTIAL"})
    assert usual == ExponentialPolicy(5_000, 7_200_000, 2)
    assert [usual.wait_ms(attempt) for attempt in (1, 2, 3, 100)] == [5_000, 10_000, 20_000, 7_200_000]


@pytest.mark.parametrize(
    "value",
    [None, {}, {"type": "CUSTOMIZED"}, {"type": None, "customizedRetryPolicy": {"next": None, "new": 1}}],
)
def test_what_is_not_said_is_as_in_rocketmq(value: Any) -> None:
    assert policy_of(value) == DEFAULT
    check(value)


def test_the_bounds_themselves_are_allowed() -> None:
    steps = [0, LONGEST_MS] * 64
    assert policy_of({"customizedRetryPolicy": {"next": steps}}) == CustomizedPolicy(tuple(steps))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "groupRetryPolicy is an array of 0, not an object"),
        ("EXPONENTIAL", "groupRetryPolicy is 'EXPONENTIAL', not an object"),
        ({"type": "exponential"}, "type of groupRetryPolicy is 'exponential'; use one of CUSTOMIZED"),
        ({"type": 1}, "type of groupRetryPolicy is 1"),
        ({"type": ["EXPONENTIAL"]}, "type of groupRetryPolicy is an array of 1"),
        ({"customizedRetryPolicy": []}, "customizedRetryPolicy is an array of 0, not an object"),
        (
            {"customizedRetryPolicy": {"next": []}},
            "next of customizedRetryPolicy is an array of 0; an array of 1",
        ),
        ({"customizedRetryPolicy": {"next": [1] * 129}}, "next of customizedRetryPolicy is an array of 129"),
        ({"customizedRetryPolicy": {"next": 5}}, "next of customizedRetryPolicy is 5"),
        (
            {"customizedRetryPolicy": {"next": [5, -1]}},
            r"next\[1\] of customizedRetryPolicy is -1; a whole number",
        ),
        ({"customizedRetryPolicy": {"next": [LONGEST_MS + 1]}}, r"next\[0\] .* is 43200001"),
        ({"customizedRetryPolicy": {"next": ["5"]}}, r"next\[0\] .* is '5'"),
        ({"customizedRetryPolicy": {"next": [True]}}, r"next\[0\] .* is True"),
        ({"customizedRetryPolicy": {"next": [float("nan")]}}, r"next\[0\] .* is nan"),
        ({"customizedRetryPolicy": {"next": [10**5000]}}, r"next\[0\] .* is a huge number"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": -1}}, "initial of .* is -1"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1.5}}, "initial of .* is 1.5"),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 1 << 62}},
            "max of exponentialRetryPolicy",
        ),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 0}}, "multiplier of .* is 0"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 1001}}, "multiplier of .* is 1001"),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": float("inf")}},
            "multiplier .* is inf",
        ),
    ],
)
def test_what_makes_no_sense_is_named_with_its_value(value: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        policy_of(value)
    with pytest.raises(ConfigurationError, match=why):
        check(value)


def test_the_policy_that_is_not_in_force_is_checked_when_it_is_given() -> None:
    value = {"type": "CUSTOMIZED", "exponentialRetryPolicy": {"initial": -1}}
    assert policy_of(value) == DEFAULT
    with pytest.raises(ConfigurationError, match="initial of exponentialRetryPolicy is -1"):
        check(value)
