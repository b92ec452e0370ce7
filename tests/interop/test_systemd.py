"""The systemd unit: Debian's systemd reads it, and its own commands run, with what it takes from a service taken away."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lakebroker_testing.client import Client
from lakebroker_testing.gateway import ROOT
from tests.support.machines.read_only import read_only
from tests.support.waiting import LIMIT_S

UNIT = ROOT / "deploy" / "systemd" / "lakebroker.service"
PROGRAM, STATE, CONFIGURATION = (
    "/opt/lakebroker/venv/bin/lakebroker",
    "/var/lib/lakebroker",
    "/etc/lakebroker",
)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with folders of the test in place of the host's."""
    program = tmp_path / "bin" / "lakebroker"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m broker_gateway.cli.main "$@"\n'
    )
    program.chmod(0o755)
    (tmp_path / "etc").mkdir()
    (tmp_path / "state").mkdir()
    own_ports = (
        "grpcServerPort=0\nlistenPort=0\nmetricsPromExporterPort=0\nmappedFileSizeCommitLog=16777216\n"
    )
    options = (UNIT.parent / "broker.conf").read_text() + own_ports
    options += f"lakePortFile={tmp_path / 'state' / 'ports.json'}\nlakeAutoCreateTopics=true\n"
    (tmp_path / "etc" / "broker.conf").write_text(options)
    found = tmp_path / "lakebroker.service"
    text = UNIT.read_text().replace(PROGRAM, str(program)).replace(STATE, str(tmp_path / "state"))
    found.write_text(text.replace(CONFIGURATION, str(tmp_path / "etc")))
    return found


def settings(unit: Path) -> dict[str, str]:
    pairs = [line.partition("=") for line in unit.read_text().splitlines() if "=" in line and line[0] != "#"]
    return {name: value for name, _, value in pairs}


def test_systemd_takes_it_without_a_word(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
    assert (done.returncode, ours) == (0, [])
    unit.write_text(unit.read_text().replace("LimitNOFILE=", "LimitNOFILES="))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert "LimitNOFILES" in done.stderr, "a misspelt key is told"


def test_its_commands_serve_and_tell_systemd_so(unit: Path) -> None:
    said = settings(unit)
    state = Path(said["WorkingDirectory"])
    wrapper = read_only(state)
    environment = {
        "PATH": os.environ["PATH"],
        **dict(part.split("=") for part in said["Environment"].split()),
    }
    before = subprocess.run(
        [*wrapper, *shlex.split(said["ExecStartPre"].removeprefix("-"))],
        env=environment,
        cwd=state,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert before.returncode == 0, before.stdout + before.stderr
    address = state / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(LIMIT_S)
        told = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "400000"}
        with (state / "log").open("wb") as log:
            process = subprocess.Popen(
                [*wrapper, *shlex.split(said["ExecStart"])],
                env={**environment, **told},
                cwd=state,
                stdout=log,
                stderr=log,
            )
        try:
            until(manager, "READY=1")
            until(manager, "WATCHDOG=1")
            client = Client(f"127.0.0.1:{grpc_port(state)}")
            assert client.send("t", b"m").entries
            client.close()
            until(manager, "WATCHDOG=1")
            # the socket holds ten words: with as many beats unread, the last word would be lost
            process.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            drain(manager)
            process.terminate()
            process.send_signal(signal.SIGCONT)
            until(manager, "STOPPING=1")
            assert process.wait(float(said["TimeoutStopSec"])) == 0
        finally:
            process.kill()
            process.wait()


def test_wrong_options_are_not_tried_again(unit: Path) -> None:
    said = settings(unit)
    configuration = unit.parent / "etc" / "broker.conf"
    configuration.write_text(configuration.read_text() + "flushDiskType=MAYBE\n")
    checked, started = (
        subprocess.run(
            shlex.split(said[name].removeprefix("-")),
            cwd=said["WorkingDirectory"],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        for name in ("ExecStartPre", "ExecStart")
    )
    assert "flushDiskType=MAYBE" in checked.stdout, "for the journal"
    assert said["ExecStartPre"].startswith("-"), (
        "else the check's own status counts, which asks for another try"
    )
    assert str(started.returncode) in said["RestartPreventExitStatus"].split()


def until(manager: socket.socket, word: str) -> None:
    """Waits until that is told; times out with the test."""
    while word not in manager.recv(4096).decode().splitlines():
        pass


def drain(manager: socket.socket) -> None:
    """Reads and drops what is in the socket."""
    manager.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            manager.recv(4096)
    manager.settimeout(LIMIT_S)


def grpc_port(state: Path) -> int:
    return int(json.loads((state / "ports.json").read_text())["grpc"])
