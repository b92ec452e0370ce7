"""Options of the broker's own name server: from the broker's, the environment, and the file they were changed in."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from broker_gateway.cluster.startup import name_server_config, name_server_port
from broker_gateway.config.gateway import load_config
from broker_gateway.nameserver.config import NameServerConfig
from broker_gateway.nameserver.server import NameServer
from broker_gateway.runtime.errors import OptionError, StartError


def own(folder: Path, environment: dict[str, str] | None = None, **options: str) -> NameServerConfig:
    config, _ = load_config(None, {"storePathRootDir": str(folder), **options}, {})
    found, warnings = name_server_config(config, environment or {})
    assert warnings == []
    return found


def stored(folder: Path, text: str) -> Path:
    path = folder / "namesrv" / "namesrv.properties"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_remote_administration_is_the_brokers(tmp_path: Path) -> None:
    assert not own(tmp_path).lake.lake_remote_admin
    assert own(tmp_path, lakeRemoteAdmin="true").lake.lake_remote_admin
    variable = "LAKEBROKER_NAMESRV_lakeRemoteAdmin"
    assert own(tmp_path, {variable: "true"}).lake.lake_remote_admin
    assert not own(tmp_path, {variable: "false"}, lakeRemoteAdmin="true").lake.lake_remote_admin
    stored(tmp_path, "lakeRemoteAdmin=true\n")
    assert not own(tmp_path).lake.lake_remote_admin, "closed again when the broker's is"


def test_changed_options_are_read_back_but_for_the_brokers(tmp_path: Path) -> None:
    path = stored(tmp_path, "enableTopicList=false\nlistenPort=1\nconfigStorePath=/elsewhere\n")
    found = own(tmp_path, lakeNamesrvListenPort="9877")
    assert not found.namesrv.enable_topic_list
    assert found.server.listen_port == 9877
    assert found.namesrv.config_store_path == path
    assert own(tmp_path, {"LAKEBROKER_NAMESRV_enableTopicList": "true"}).namesrv.enable_topic_list


def test_a_bad_stored_option_is_named(tmp_path: Path) -> None:
    stored(tmp_path, "waitSecondsForService=soon\n")
    with pytest.raises(OptionError, match="option waitSecondsForService=soon"):
        own(tmp_path)


def test_a_port_that_is_taken_is_named_by_the_brokers_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        options = {
            "storePathRootDir": str(tmp_path),
            "grpcBindAddress": "127.0.0.1",
            "lakeNamesrvListenPort": str(other.getsockname()[1]),
        }
        config, _ = load_config(None, options, {})

        async def start() -> None:
            await NameServer(name_server_config(config, {})[0], wanted=name_server_port(config)).start()

        with pytest.raises(StartError, match="choose another lakeNamesrvListenPort"):
            asyncio.run(start())
