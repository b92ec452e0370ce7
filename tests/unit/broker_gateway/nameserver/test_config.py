"""The name server's options."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_gateway.nameserver.config import load_config
from broker_gateway.runtime.errors import OptionError


def test_defaults_are_the_originals() -> None:
    config, warnings = load_config(None, {}, {})
    shown = config.options()
    assert warnings == []
    assert (shown["listenPort"], shown["bindAddress"]) == ("9876", "0.0.0.0")
    assert (shown["scanNotActiveBrokerInterval"], shown["waitSecondsForService"]) == ("5000", "45")
    assert (shown["orderMessageEnable"], shown["returnOrderTopicConfigToBroker"]) == ("false", "true")
    assert shown["kvConfigPath"] == str(Path.home() / "namesrv" / "kvConfig.json")


def test_file_environment_and_command_line(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_text("# a comment\nlistenPort = 1\nkvConfigPath=/f\nserverWorkerThreads=3\nlistenPrt=2\n")
    config, warnings = load_config(
        path,
        {"listenPort": "3"},
        {"LAKEBROKER_NAMESRV_listenPort": "2", "LAKEBROKER_NAMESRV_kvConfigPath": "/e"},
    )
    assert config.server.listen_port == 3
    assert config.namesrv.kv_config_path == Path("/e")
    assert config.namesrv.config_store_path == path, "as in the original"
    assert warnings == ["option listenPrt is unknown and has no effect; did you mean listenPort?"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listenPort", "65536"),
        ("listenPort", "x"),
        ("scanNotActiveBrokerInterval", "0"),
        ("needWaitForService", "perhaps"),
        ("needWaitForService", "yes"),
        ("scanNotActiveBrokerInterval", "5_000"),
        ("kvConfigPath", ""),
        ("clusterTest", "true"),
        ("enableControllerInNamesrv", "true"),
    ],
)
def test_bad_values_are_named(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"option {name}={value}"):
        load_config(None, {name: value}, {})


def test_a_byte_order_mark_and_a_variable_that_names_no_option(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_bytes(b"\xef\xbb\xbflistenPort=1\n")
    config, warnings = load_config(
        path, {}, {"LAKEBROKER_NAMESRV_listenPrt": "2", "LAKEBROKER_brokrName": "x"}
    )
    assert config.server.listen_port == 1
    assert warnings == [
        "environment variable LAKEBROKER_NAMESRV_listenPrt names no option and has no effect; did you mean "
        "LAKEBROKER_NAMESRV_listenPort?"
    ]


def test_changes() -> None:
    config, _ = load_config(None, {"listenPort": "5"}, {})
    changed = config.changed({"orderMessageEnable": "true", "unknown": "x"})
    assert changed.namesrv.order_message_enable
    assert changed.server == config.server
    with pytest.raises(OptionError, match="option waitSecondsForService=soon"):
        config.changed({"waitSecondsForService": "soon"})
