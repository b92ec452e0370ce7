"""Wherever the log ends: for each record of what a delivery machine left, another one begins where the log ends behind it."""

from __future__ import annotations

import shutil
from pathlib import Path

from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.clock import ManualClock
from lakebroker_testing.crash_image import copy_at_rest
from tests.suite.evidence import sample
from tests.support.brokers.delivery_checks import check_queues
from tests.support.brokers.delivery_known import CLIENTS, GROUPS, ORDERED, Known, Moment
from tests.support.brokers.delivery_machine import DeliveryMachine


class CutMachine(DeliveryMachine):
    """A machine without errors that ends with `cuts`; `folder` is for its stores."""

    folder: Path
    break_one = None  # type: ignore[assignment]

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            try:
                cuts(self, self.folder)
            finally:
                shutil.rmtree(self.folder)
                self.folder.mkdir()


def cuts(machine: DeliveryMachine, folder: Path) -> int:
    """Ends the machine, and for each record of its log (in short each fourth) lets another one begin where the log ends behind
    that record, to receive and settle all that is open there; how many records there are. `folder`: for the stores."""
    image = folder / "image"
    moments = machine.moments
    store = machine.broker.store
    at, ends = store.min_offset, []
    while at < store.max_offset:
        at += int.from_bytes(store.read(at, 4), "big")
        ends.append(at)
    copy_at_rest(machine.broker.root, image)
    machine.broker.__exit__(AssertionError, None, None)
    for end in sample(ends, 8):
        later = next((number for number, each in enumerate(moments) if each.log_end > end), len(moments))
        if later == 0:
            continue  # the topic and its groups are being made
        before, after = moments[later - 1], moments[min(later, len(moments) - 1)]
        cut = folder / "cut"
        shutil.copytree(image, cut / "store")
        _end_log(cut / "store", end)
        other = _MachineOfACut()
        try:
            other.begin_at(cut, before, after)
        except BaseException as error:
            error.add_note(f"the log ended at {end}, behind step {later}")
            raise
        finally:
            other.teardown()
            shutil.rmtree(cut)
    return len(ends)


class _MachineOfACut(DeliveryMachine):
    """Begins with a store that another one left."""

    def begin_at(self, folder: Path, before: Moment, after: Moment) -> None:
        """Begins with a store whose log ends between two moments. What these do not agree in may be either way."""
        self.snapshot_bytes, self.compiled = 1 << 40, False
        clock = ManualClock(before.now_ms)
        self.broker = InProcessBroker(folder, clock=clock, log_level="critical").__enter__()
        self._begin({group: _agreed(before.known[group], after.known[group]) for group in GROUPS})
        self.gone = True
        self._prepare()
        self._new_messages()
        for key in before.queues:
            state = self.broker.broker.deliveries.known(key)
            known = self.known[key.group]
            for place in self.tags:
                offset = place[1]
                if place[0] != key.queue_id or state is None:
                    continue
                was_open = all(
                    offset in each.flying or offset >= max(each.position, each.cursor)
                    for each in (before.queues[key], after.queues[key])
                )
                is_open = offset in state.in_flight or offset >= state.position
                assert is_open or not was_open or place in known.maybe or self._dead(key, offset), (
                    f"{key} lost {place}"
                )
            for place in [each for each in known.held if each[0] == key.queue_id]:
                if self._dead(key, place[1]):  # between the two, when its time was over
                    del known.held[place]
        check_queues(self.broker, self.groups)
        for client in CLIENTS:
            for attempt_id in ("x", "y"):
                self.receive(ORDERED, client, "*", 5, 10_000, attempt_id)


def _agreed(before: Known, after: Known) -> Known:
    """What is known between two moments."""
    changed = before.settled ^ after.settled
    for one, other in ((before.held, after.held), (before.attempts, after.attempts)):
        changed |= {place for place in {*one, *other} if one.get(place) != other.get(place)}
    held = {place: held for place, held in before.held.items() if place not in changed}
    return Known(
        before.settled & after.settled,
        before.maybe | after.maybe | changed,
        held,
        dict(before.attempts),
    )


def _end_log(root: Path, end: int) -> None:
    """As if nothing had been written behind a physical offset."""
    for segment in sorted((root / "commitlog").iterdir()):
        start, size = int(segment.name), segment.stat().st_size
        if start + size > end:
            with segment.open("r+b") as file:
                file.truncate(max(end - start, 0))
                file.truncate(size)
