"""What each of several brokers of one host is given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from broker_gateway.app.supervisor import _Child, _Supervisor, child_options
from broker_gateway.config.gateway import load_config


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", None),
        ("/disk/log", "/disk/log/broker-a-1"),
        ("/one, /two/log/", "/one/broker-a-1,/two/log/broker-a-1"),
        ("/stores/commitlog", "/stores/broker-a-1/commitlog"),
        ("/stores/sub/../log,/disk", "/stores/broker-a-1/log,/disk/broker-a-1"),
        ("/stores", "/stores/broker-a-1"),
        ("/stores-too", "/stores-too/broker-a-1"),
    ],
)
def test_each_broker_has_folders_of_its_own_for_its_log(given: str, expected: str | None) -> None:
    config = load_config(None, {"storePathRootDir": "/stores", "storePathCommitLog": given})[0]
    assert child_options(config, 1, Path("/unused")).get("storePathCommitLog") == expected


@pytest.mark.parametrize("serves", [True, False])
def test_a_broker_that_dies_right_behind_its_start_did_serve(tmp_path: Path, serves: bool) -> None:
    ports = tmp_path / "ports.json"
    script = f"open({str(ports)!r}, 'w').write('{{}}'); exit(3)" if serves else "exit(3)"
    child = _Child("b", [sys.executable, "-c", script], ports)
    supervisor = _Supervisor([child], tmp_path / "peers.json", None, 10)
    assert supervisor._looked_after(child) is None
    assert child.process is not None
    child.process.wait()
    assert supervisor._looked_after(child) == (None if serves else 3)
    assert child.served == serves


def test_a_broker_that_does_not_serve_yet_is_stopped_by_the_end_of_its_input_alone(tmp_path: Path) -> None:
    child = _Child("b", [sys.executable, "-c", "import sys; sys.stdin.read()"], tmp_path / "ports.json")
    supervisor = _Supervisor([child], tmp_path / "peers.json", None, 30)
    assert supervisor._looked_after(child) is None
    assert child.process is not None
    assert supervisor._end() == 0
    assert child.process.returncode == 0
