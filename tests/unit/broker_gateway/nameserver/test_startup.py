"""What a name server's start says of its host."""

from __future__ import annotations

import resource

import pytest
from structlog.testing import capture_logs

from broker_gateway.nameserver.startup import allow_files


def test_a_limit_of_open_files_that_is_too_low_comes_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 20_000))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: given.append(limits))
    with capture_logs() as logs:
        allow_files(20_000)
    (line,) = logs
    assert "ulimit -Hn" in line["event"]
    assert "or set a smaller lakeMaxConnections" in line["event"]
    assert (line["allowed"], line["needed"]) == (20_000, 20_064)
    assert given == [(20_000, 20_000)]
    logs.clear()
    allow_files(19_936)
    assert logs == []
