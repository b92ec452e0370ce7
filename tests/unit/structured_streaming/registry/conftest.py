"""A registry of this process answers when its thread gets the processor: nobody here is away because that takes long."""

from __future__ import annotations

import pytest

from structured_streaming.registry import http
from tests.support.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_S", LIMIT_S)
    monkeypatch.setattr(http, "WHOLE_S", LIMIT_S)
