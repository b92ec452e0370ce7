"""A standalone Spark cluster of real processes: a master and workers, on the loopback interface or on hosts of their own.

They are ended by their ids.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyspark

from lakebroker_testing.gateway import ROOT
from lakebroker_testing.programs import until_ready

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"(Successfully registered with master)")


class Place(NamedTuple):
    """Where a process runs: the address that others know, what goes before its command, the folder for what it writes."""

    address: str
    wrapper: Sequence[str]
    folder: Path


class Cluster:
    """See the module. `places` are those of the master and of each worker; `environment` is added to that of all, `defaults` are lines of
    their spark-defaults.conf.

    A worker's folder is also its executors'.
    """

    def __init__(
        self, places: Sequence[Place], environment: Mapping[str, str] | None = None, defaults: str = ""
    ) -> None:
        self._places = places
        self._environment = environment or {}
        self._defaults = defaults
        self.master = ""
        """`spark://host:port`."""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        master, *others = self._places
        try:
            self._start(master, "master.Master", "--port", "0")
            self.master = self._said(0, _MASTER)
            for place in others:
                options = ("--cores", "1", "--memory", "1g", "--work-dir", str(place.folder))
                self.workers.append(self._start(place, "worker.Worker", *options, self.master))
            for number in range(len(others)):
                self._said(1 + number, _REGISTERED)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ran(self) -> list[str]:
        """Names of the folders of workers that had an executor."""
        return [place.folder.name for place in self._places[1:] if any(place.folder.glob("app-*/*/stderr"))]

    def _start(self, place: Place, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        jars = Path(pyspark.__file__).parent / "jars"
        configuration = place.folder / "conf"
        configuration.mkdir(parents=True)
        (configuration / "log4j2.properties").write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.stderr.ref = stderr\nappender.stderr.type = Console\n"
            "appender.stderr.name = stderr\nappender.stderr.target = SYSTEM_ERR\n"
            "appender.stderr.layout.type = PatternLayout\nappender.stderr.layout.pattern = %m%n\n"
        )
        if self._defaults:
            (configuration / "spark-defaults.conf").write_text(self._defaults)
        memory = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        java = ("java", *memory, "-cp", f"{configuration}:{jars}/*", f"org.apache.spark.deploy.{kind}")
        there = ("--host", place.address, "--webui-port", "0")
        with _log(place).open("wb") as log:
            process = subprocess.Popen(
                [*place.wrapper, *java, *there, *arguments],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ
                | {
                    "SPARK_LOCAL_IP": place.address,
                    "SPARK_HOME": str(jars.parent),
                    "SPARK_SCALA_VERSION": "2.13",
                    "SPARK_CONF_DIR": str(configuration),
                    "PYTHONPATH": str(ROOT),
                }
                | self._environment,
            )
        self._processes.append(process)
        return process

    def _said(self, number: int, line: re.Pattern[str]) -> str:
        """The first group of a line that a process logs."""
        log = _log(self._places[number])
        name = f"Spark on {self._places[number].address}"
        return until_ready(
            name, self._processes[number], log, lambda: line.search(log.read_text(errors="replace"))
        )[1]


def on_loopback(folder: Path, workers: int = 2) -> list[Place]:
    """Places of a cluster within one host, with folders in `folder`."""
    names = ["master", *(f"worker-{number}" for number in range(workers))]
    return [Place("127.0.0.1", (), folder / name) for name in names]


def _log(place: Place) -> Path:
    return place.folder / "spark.log"
