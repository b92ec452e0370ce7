"""Water marks of the calls under way, and of the event loop."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker_gateway.config.gateway import load_config
from broker_gateway.messaging.admission import Admission
from broker_gateway.messaging.water_marks import WaterMarks
from broker_gateway.runtime.turn import Turn


def test_a_kind_of_call_is_told_once_when_it_rises_and_once_when_it_falls() -> None:
    admission = Admission(load_config(None, {"sendThreadPoolQueueCapacity": "10"}, {})[0], Turn())
    marks = WaterMarks(admission, 1.0)
    told = []
    for under_way in (0, 8, 9, 10, 9, 5, 4, 0, 9):
        admission.send.under_way = under_way
        with capture_logs() as logs:
            marks.look()
        told.append([each["log_level"] for each in logs if each.get("kind") == "send"])
    assert told == [[], [], ["warning"], [], [], [], ["info"], [], ["warning"]]


def test_a_late_look_says_how_late_the_event_loop_is() -> None:
    times = iter((0.0, 1.0, 3.5, 4.4))
    marks = WaterMarks(Admission(load_config(None, {}, {})[0], Turn()), 1.0, lambda: next(times))
    late = []
    for _ in range(4):
        marks.look()
        late.append(marks.late_s)
    assert late == pytest.approx([0, 0, 1.5, 0])
