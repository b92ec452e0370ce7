"""What the name server's files say is in force, whoever goes away meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from broker_gateway.nameserver.config import load_config
from broker_gateway.nameserver.state import State
from broker_gateway.runtime.files import write_whole
from tests.support.waiting import LIMIT_S


def test_a_change_whose_client_goes_away_is_made_wholly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "namesrv.properties"
    given = {"configStorePath": str(path), "kvConfigPath": str(tmp_path / "kv.json")}
    config = load_config(None, given)[0]
    changed = load_config(None, {**given, "listenPort": "9999"})[0]
    writing, go_on = threading.Event(), threading.Event()

    def slow(path: Path, text: str) -> None:
        writing.set()
        assert go_on.wait(LIMIT_S)
        write_whole(path, text)

    monkeypatch.setattr("broker_gateway.nameserver.state.write_whole", slow)

    async def scenario() -> None:
        state = State(config, lambda: 0, lambda change: None)
        client = asyncio.create_task(state.change_config(lambda _: changed))
        await asyncio.to_thread(writing.wait, 10)
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        go_on.set()
        await state.change_config(lambda config: config)
        assert state.config is changed
        assert "listenPort=9999\n" in path.read_text()

    asyncio.run(scenario())
