"""Compiled code is loaded in parts: one that cannot be loaded keeps no other from being."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from broker_gateway.api.grpc.receive_columns import ReceiveColumns
from lakebroker_testing.broker import InProcessBroker


def test_one_part_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("not on this processor")

    monkeypatch.setattr(ReceiveColumns, "__init__", fails)
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        searched: list[bool] = []
        search = broker.broker.parts.message_search
        monkeypatch.setattr(search, "load_compiled", lambda: searched.append(True))
        with capture_logs() as logs:
            assert not broker.broker.load_compiled()
        broker.send("orders", b"one")
        assert [each.body for each in broker.receive("orders", "billing")[1]] == [b"one"]
    assert [each["part"] for each in logs if each["log_level"] == "error"] == ["receives"]
    assert searched == [True]
