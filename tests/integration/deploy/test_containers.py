"""The container files without an engine: what they copy is there, and their commands do what they should."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import urllib.error
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT, Gateway
from lakebroker_testing.prestarted import run
from tests.support.machines.containerfiles import (
    CONTAINERS,
    command_of,
    copied,
    environment,
    instructions,
    the,
)

FILES = sorted(CONTAINERS.glob("*.Containerfile"))
BROKER, JOBS = CONTAINERS / "broker.Containerfile", CONTAINERS / "jobs.Containerfile"
EVERY = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def test_both_are_looked_at() -> None:
    assert FILES == [BROKER, JOBS]


@EVERY
def test_what_is_copied_is_there_and_is_all_that_a_wheel_needs(file: Path) -> None:
    sources = copied(file)
    for source in sources:
        assert (ROOT / source).exists(), source
    kept = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line[0] == "!"}
    assert set(sources) == kept, "the ignore file lets through what is copied, and no more"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    generated = {"lakebroker_pb"}  # by the build, from proto
    assert set(packages) - generated <= set(sources)


@EVERY
def test_it_runs_as_nobody_important_and_stops_by_a_signal(file: Path) -> None:
    user, group = the(file, "USER").split(":")
    assert min(int(user), int(group)) > 999
    assert the(file, "STOPSIGNAL") == "SIGTERM"
    assert the(file, "VOLUME") == the(file, "WORKDIR")
    assert instructions(file)[0].rest.startswith("docker.io/library/python:3.11-slim-bookworm")
    assert "/opt/lakebroker/bin" in environment(file)["PATH"].split(":")


def test_builds_are_documented_in_the_format_that_has_health_checks() -> None:
    for file in (*FILES, ROOT / "docs" / "deploying.md"):
        builds = re.findall(r"podman build (.*)", file.read_text())
        assert builds, file
        assert all(each.startswith("--format docker ") for each in builds), file


@EVERY
def test_its_entry_point_is_a_command_with_these_options(file: Path) -> None:
    program, name, *arguments = command_of(the(file, "ENTRYPOINT"))
    assert program == "lakebroker"
    shown = run(name, "--help").stdout
    for option in (each for each in arguments if each.startswith("--")):
        assert option in shown


def test_the_brokers_health_check_tells_a_gateway_that_serves(tmp_path: Path) -> None:
    program, *arguments = command_of(the(BROKER, "HEALTHCHECK"))
    assert program == "lakebroker"
    with Gateway(tmp_path) as gateway:
        asked = [each.replace("127.0.0.1:8081", gateway.address) for each in arguments]
        assert gateway.address in asked
        healthy = run(*asked)
        assert (healthy.returncode, healthy.stdout) == (0, f"{gateway.address} serves\n")
        assert gateway.terminate() == 0
        gone = run(*asked)
    assert gone.returncode == 1
    assert "no gateway at" in gone.stderr


def test_the_ports_are_those_of_the_options() -> None:
    shown = dict(line.split("=", 1) for line in run("gateway", "-p").stdout.splitlines())
    listen = int(shown["listenPort"])
    ports = [shown["grpcServerPort"], str(listen), str(listen - 2), shown["metricsPromExporterPort"]]
    assert the(BROKER, "EXPOSE").split() == ports


def test_the_jobs_health_check_asks_the_port_of_the_entry_point(tmp_path: Path) -> None:
    entry, check = command_of(the(JOBS, "ENTRYPOINT")), command_of(the(JOBS, "HEALTHCHECK"))
    port = entry[entry.index("--metrics-port") + 1]
    assert the(JOBS, "EXPOSE") == port
    assert f"127.0.0.1:{port}/" in check[-1]
    with Gateway(tmp_path) as gateway:  # the same server of metrics
        script = re.sub(rf"127\.0\.0\.1:{port}", f"127.0.0.1:{gateway.metrics_port}", check[-1])
        assert python(script).returncode == 0
        assert gateway.terminate() == 0
    gone = python(script)
    assert gone.returncode != 0
    assert urllib.error.URLError.__name__ in gone.stderr


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
