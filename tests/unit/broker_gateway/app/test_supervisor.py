"""What each of several brokers of one host is given, and what becomes of all when one does not start or does not end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_gateway.app.supervisor import Child, Supervisor, child_options
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


@pytest.fixture
def _own_signals() -> Iterator[None]:
    """A supervisor takes those that stop it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def shell(folder: Path, name: str, script: str) -> Child:
    return Child(name, ["sh", "-c", script], folder / f"{name}.json")


@pytest.mark.usefixtures("_own_signals")
@pytest.mark.parametrize("serves", [True, False])
def test_a_broker_that_dies_right_behind_its_start_did_serve(tmp_path: Path, serves: bool) -> None:
    """It is started again, and tells the supervisor to stop then."""
    again = "if [ -e again ]; then kill -TERM $PPID; exec cat; fi; touch again"
    ports = "echo '{}' > b.json; " if serves else ""
    child = shell(tmp_path, "b", f"cd '{tmp_path}'; {again}; {ports}exit 3")
    child.wait_s = 0.0
    with capture_logs() as logs:
        assert Supervisor([child], tmp_path / "peers.json", None, 10).run() == (0 if serves else 3)
    happened = "a broker died; it is started again" if serves else "a broker could not start; all are stopped"
    assert [(each["event"], each["status"]) for each in logs] == [(happened, 3)]


@pytest.mark.usefixtures("_own_signals")
def test_a_broker_that_does_not_serve_yet_is_stopped_by_the_end_of_its_input_alone(tmp_path: Path) -> None:
    child = shell(tmp_path, "b", "kill -TERM $PPID; exec cat")
    assert Supervisor([child], tmp_path / "peers.json", None, 30).run() == 0
    assert child.process is not None
    assert child.process.returncode == 0


@pytest.mark.usefixtures("_own_signals")
def test_a_broker_that_cannot_start_stops_all(tmp_path: Path) -> None:
    other = shell(tmp_path, "other", "exec cat")
    peers = tmp_path / "processes" / "peers.json"
    peers.parent.mkdir()
    supervisor = Supervisor([other, shell(tmp_path, "bad", "exit 253")], peers, tmp_path / "ports.json", 30)
    with capture_logs() as logs:
        assert supervisor.run() == 253
    assert other.process is not None
    assert other.process.returncode == 0
    assert [(each["broker"], each["status"]) for each in logs] == [("bad", 253)]
    assert list(tmp_path.iterdir()) == [], "a single broker may begin there"


@pytest.mark.usefixtures("_own_signals")
def test_a_broker_that_does_not_end_is_killed_at_a_second_signal(tmp_path: Path) -> None:
    """It sends the supervisor the first itself, and more behind the end of its input, past the time in which they are one.

    Their number has an end: of a broker that is left behind, `$PPID` is another process's some day.
    """
    more = "for signal in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; kill -TERM $PPID; done"
    stays = f"kill -TERM $PPID; cat; {more}; exec sleep 600"
    children = [shell(tmp_path, "stays", stays), shell(tmp_path, "ends", "exec cat")]
    with capture_logs() as logs:
        ended = Supervisor(children, tmp_path / "peers.json", None, 600).run()
    assert ended == 128 + signal.SIGKILL
    assert children[1].process is not None
    assert children[1].process.returncode == 0
    assert [each["brokers"] for each in logs] == [["stays"]]
