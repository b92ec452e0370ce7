"""What comes in a call: what is not allowed is shown, with its reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_gateway.messaging import checks
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.names import GROUP_MAX_LENGTH, RETRY_TOPIC_MAX_LENGTH, TOPIC_MAX_LENGTH


def topic(name: str) -> None:
    checks.check_topic(name, "DefaultCluster", "broker-a")


CHECKED: list[tuple[Callable[[str], None], list[str], list[tuple[str, Reason, str]]]] = [
    (
        topic,
        ["t", "A-b_c%|9", "x" * TOPIC_MAX_LENGTH, "%RETRY%" + "x" * (RETRY_TOPIC_MAX_LENGTH - 7)],
        [
            ("", Reason.ILLEGAL_TOPIC, "empty"),
            ("\t", Reason.ILLEGAL_TOPIC, "empty"),
            ("x" * (TOPIC_MAX_LENGTH + 1), Reason.ILLEGAL_TOPIC, f"{TOPIC_MAX_LENGTH + 1} characters"),
            (
                "%DLQ%" + "x" * RETRY_TOPIC_MAX_LENGTH,
                Reason.ILLEGAL_TOPIC,
                f"at most {RETRY_TOPIC_MAX_LENGTH}",
            ),
            ("é", Reason.ILLEGAL_TOPIC, "'é'"),
            ("broker-a", Reason.ILLEGAL_TOPIC, "system topic"),
            ("DefaultCluster", Reason.ILLEGAL_TOPIC, "system topic"),
        ],
    ),
    (
        checks.check_group,
        ["g", "x" * GROUP_MAX_LENGTH],
        [
            ("", Reason.ILLEGAL_CONSUMER_GROUP, "empty"),
            ("x" * (GROUP_MAX_LENGTH + 1), Reason.ILLEGAL_CONSUMER_GROUP, f"at most {GROUP_MAX_LENGTH}"),
            ("a/b", Reason.ILLEGAL_CONSUMER_GROUP, "'a/b'"),
            ("CID_RMQ_SYS_x", Reason.ILLEGAL_CONSUMER_GROUP, "system consumer group"),
        ],
    ),
    (
        checks.check_tag,
        ["", "a", "a b"],
        [
            (" ", Reason.ILLEGAL_MESSAGE_TAG, "white space"),
            ("a|b", Reason.ILLEGAL_MESSAGE_TAG, r"'a\|b'"),
            ("a\x01", Reason.ILLEGAL_MESSAGE_TAG, "control characters"),
        ],
    ),
    (
        checks.check_key,
        ["", "a"],
        [(" ", Reason.ILLEGAL_MESSAGE_KEY, "white space"), ("a\n", Reason.ILLEGAL_MESSAGE_KEY, "control")],
    ),
]


@pytest.mark.parametrize(("check", "value"), [(check, value) for check, good, _ in CHECKED for value in good])
def test_what_is_allowed_is_taken(check: Callable[[str], None], value: str) -> None:
    check(value)


@pytest.mark.parametrize(
    ("check", "value", "reason", "named"), [(check, *each) for check, _, bad in CHECKED for each in bad]
)
def test_what_is_not_is_named(check: Callable[[str], None], value: str, reason: Reason, named: str) -> None:
    with pytest.raises(ServiceError, match=named) as refused:
        check(value)
    assert refused.value.reason is reason


def test_invisible_times_have_bounds() -> None:
    assert [checks.check_invisible_ms(value, 10, 20) for value in (10, 20)] == [10, 20]
    for value, why in ((9, "too small. min is 10"), (21, "too large. max is 20")):
        with pytest.raises(ServiceError, match=why) as refused:
            checks.check_invisible_ms(value, 10, 20)
        assert refused.value.reason is Reason.ILLEGAL_INVISIBLE_TIME


def test_long_values_are_cut() -> None:
    assert checks.shown("x" * 1000) == f"'{'x' * 80}…'"
    assert checks.shown("a\nb") == r"'a\nb'"
