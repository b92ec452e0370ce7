"""The search for violations of delivery, for ten minutes with LAKEBROKER_EVIDENCE=1, else for some examples.

What it finds is kept as a sequence in `tests/unit/broker_gateway/delivery/test_delivery_machine.py`.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.delivery_machine import DeliveryMachine
from tests.fault.conftest import EVIDENCE

SEARCH_S = 600.0 if EVIDENCE else 0.0


@pytest.mark.timeout(7200)
def test_no_sequence_loses_strands_or_doubles_a_message() -> None:
    ends, searches = time.monotonic() + SEARCH_S, 0
    while searches == 0 or time.monotonic() < ends:
        run_state_machine_as_test(
            DeliveryMachine,
            settings=settings(
                max_examples=100 if SEARCH_S else 5,
                stateful_step_count=50,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        searches += 1
