"""A lake for the notebooks: a day and a half of traffic of two brokers, made without a gateway and without Spark.

`orders` are read by `billing`, which settles four at a time and stopped before the end, and `audit`, which gives some up; a few of these were sent again. `shipments`
are settled, but for one. Names and reasons have what a plot or a page could take for something else than text.
"""

from __future__ import annotations

from pathlib import Path

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from tests.support.lakes.staged import StagedLake
from tests.support.logs.views import MINUTE, ViewLog, happened, settled

HOURS = 36
HOSTILE = "<script>alert('$x^2$')</script> refused, and at such length that no axis has room for all of what was said"
HOSTILE_TOPIC = "price_$usd$_\\frac"
REASONS = ("no such account", HOSTILE)
REPLAYED = {0: "settled", 1: "came back", 5: "under way"}
"""What became of letters of `audit` that were sent again, by their number."""
SPOILED = 100
"""The shipment that `shipping` gave up."""
QUIET_QUEUE = 1
"""Of `orders`: two messages that `billing` leaves, within the first day; a lag that stays while queue 0 moves."""
_END = HOURS * 60 * MINUTE


def make_lake(folder: Path) -> Path:
    """Returns where it is."""
    staged = StagedLake(folder)
    staged.take(_orders(), broker="broker-a")
    staged.take(_shipments(), broker="broker-b")
    return staged.folder


def _times() -> list[int]:
    """Of the orders, ms: one in seven minutes, and three a minute in the last half hour."""
    return [*range(0, _END - 30 * MINUTE, 7 * MINUTE), *range(_END - 30 * MINUTE, _END, 20_000)]


def _orders() -> bytes:
    log = ViewLog()
    times = _times()
    letters: list[tuple[str, str]] = []
    for number, at in enumerate(times):
        name, key = f"ORDER{number:05d}", f"order-{number}"
        log.put(
            "orders", at, body=b"o" * (number % 50), UNIQ_KEY=name, KEYS=f"{key} orders-of-all", TAGS="new"
        )
        events = [happened(pb.DELIVERED, at + 40, 1, (number, name))]
        if number % 23 == 5:
            events += _given_up(at, number, name)
            letters.append((name, REASONS[len(letters) % 2]))
            committed = settled("audit", "orders", 0, number + 1, *events)
            log.journal(at + 2000, committed)
            log.put(
                "%DLQ%audit", at + 2001, reconsume_times=2, UNIQ_KEY=name, KEYS=key,
                LB_ORIGIN=f"0:{number}:2:5:auditorders", LB_REASON=letters[-1][1],
            )  # fmt: skip
        else:
            events.append(happened(pb.ACKED, at + 90, 1, (number, name)))
            log.journal(at + 2000, settled("audit", "orders", 0, number + 1, *events))
        if number % 4 == 3 and number < len(times) - 40:
            done = [(each, f"ORDER{each:05d}") for each in range(number - 3, number + 1)]
            log.journal(
                at + 3000,
                settled("billing", "orders", 0, number + 1, happened(pb.ACKED, at + 2500, 1, *done)),
            )
        if number in (20, 100):
            log.put("orders", at + 4000, QUIET_QUEUE, UNIQ_KEY=f"QUIET{number:05d}")
        if number == 20:
            log.journal(at + 4500, settled("billing", "orders", QUIET_QUEUE, 0))
        if number % 9 == 0:
            log.put(HOSTILE_TOPIC, at + 5000, body=b"p" * 30, UNIQ_KEY=f"PAY{number:05d}")
    _replays(log, letters, len(times))
    return bytes(log.data)


def _given_up(at: int, number: int, name: str) -> list[pb.Events]:
    """Two attempts that fail."""
    return [
        happened(pb.NACKED, at + 300, 1, (number, name)),
        happened(pb.DELIVERED, at + 1300, 2, (number, name)),
        happened(pb.NACKED, at + 1700, 2, (number, name)),
        happened(pb.DEAD_LETTERED, at + 1900, 2, (number, name)),
    ]


def _replays(log: ViewLog, letters: list[tuple[str, str]], offset: int) -> None:
    """One is settled, one dies again, one is being worked on."""
    for number, (letter, outcome) in enumerate(REPLAYED.items()):
        at = _END + number * 20_000
        name, (died, reason) = f"AGAIN{number}", letters[letter]
        log.put("orders", at, UNIQ_KEY=name, KEYS=f"again-{number}", REPLAY_OF=died)
        events = [happened(pb.DELIVERED, at + 10, 1, (offset + number, name))]
        if outcome == "settled":
            events.append(happened(pb.ACKED, at + 20, 1, (offset + number, name)))
        elif outcome == "came back":
            events += _given_up(at, offset + number, name)
        log.journal(at + 2000, settled("audit", "orders", 0, offset, *events))
        if outcome == "came back":
            log.put(
                "%DLQ%audit", at + 2001, reconsume_times=2, UNIQ_KEY=name, KEYS=f"again-{number}",
                LB_ORIGIN=f"0:{offset + number}:2:5:auditorders", LB_REASON=reason, REPLAY_OF=died,
            )  # fmt: skip


def _shipments() -> bytes:
    log = ViewLog()
    for number, at in enumerate(range(0, _END, 13 * MINUTE)):
        name = f"SHIP{number:05d}"
        log.put("shipments", at, body=b"s" * 20, UNIQ_KEY=name, KEYS=f"ship-{number}")
        if number == SPOILED:
            log.journal(
                at + 2000, settled("shipping", "shipments", 0, number + 1, *_given_up(at, number, name))
            )
            log.put(
                "%DLQ%shipping", at + 2001, reconsume_times=2, UNIQ_KEY=name, KEYS=f"ship-{number}",
                LB_ORIGIN=f"0:{number}:2:8:shippingshipments", LB_REASON=REASONS[0],
            )  # fmt: skip
            continue
        events = (
            happened(pb.DELIVERED, at + 5, 1, (number, name)),
            happened(pb.ACKED, at + 9, 1, (number, name)),
        )
        log.journal(at + 50, settled("shipping", "shipments", 0, number + 1, *events))
    return bytes(log.data)
