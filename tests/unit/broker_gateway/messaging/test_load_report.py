"""The report of the calls under way, and of the event loop."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker_gateway.config.gateway import load_config
from broker_gateway.messaging.admission import Admission
from broker_gateway.messaging.load_report import LoadReport
from broker_gateway.runtime.tick import Tick


def test_a_kind_of_call_is_told_once_when_it_rises_and_once_when_it_falls() -> None:
    admission = Admission(load_config(None, {"sendThreadPoolQueueCapacity": "10"}, {})[0], Tick())
    report = LoadReport(admission, 1.0)
    told = []
    for under_way in (0, 8, 9, 10, 9, 5, 4, 0, 9):
        admission.send.under_way = under_way
        with capture_logs() as logs:
            report.check()
        told.append([each["log_level"] for each in logs if each.get("kind") == "send"])
    assert told == [[], [], ["warning"], [], [], [], ["info"], [], ["warning"]]


def test_a_late_look_says_how_late_the_event_loop_is() -> None:
    times = iter((0.0, 1.0, 3.5, 4.4))
    report = LoadReport(Admission(load_config(None, {}, {})[0], Tick()), 1.0, lambda: next(times))
    late = []
    for _ in range(4):
        report.check()
        late.append(report.late_s)
    assert late == pytest.approx([0, 0, 1.5, 0])
