"""The search for violations of delivery, twice for ten minutes. Short ones are among the unit tests.

What it finds is kept as a sequence in `tests/unit/broker_gateway/delivery/test_delivery_machine.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.suite.evidence import LONG
from tests.support.brokers.delivery_cuts import CutMachine
from tests.support.brokers.delivery_machine import DeliveryMachine

SEARCH_S = 600.0
pytestmark = LONG


def search(machine: type[DeliveryMachine], steps: int, examples: int) -> None:
    ends = time.monotonic() + SEARCH_S
    while time.monotonic() < ends:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.timeout(7200)
def test_no_sequence_loses_strands_or_doubles_a_message() -> None:
    search(DeliveryMachine, 50, 100)


@pytest.mark.timeout(7200)
def test_wherever_the_log_ends_no_message_is_lost_stranded_or_doubled(tmp_path: Path) -> None:
    class Machine(CutMachine):
        folder = tmp_path / "stores"

    Machine.folder.mkdir()
    search(Machine, 20, 40)
