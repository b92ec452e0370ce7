"""A standalone Spark cluster of real processes on the loopback interface: a master and workers, ended by their ids."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pyspark

from lakebroker_testing.gateway import ROOT

_PATIENCE_S = 120.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


class Cluster:
    """See the module. `folder` holds logs, and each worker's own folder for its executors."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._count = workers
        self.master = ""
        """`spark://host:port`."""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        try:
            self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.master = self._said("master", _MASTER)
            for number in range(self._count):
                place = self._folder / f"worker-{number}"
                place.mkdir()
                options = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g")
                where = ("--work-dir", str(place), self.master)
                self.workers.append(self._start(f"worker-{number}", "worker.Worker", *options, *where))
            for number in range(self._count):
                self._said(f"worker-{number}", re.compile(f"({_REGISTERED})"))
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
        """Names of workers that had an executor."""
        return sorted(
            {path.parts[len(self._folder.parts)] for path in self._folder.glob("worker-*/app-*/*/stderr")}
        )

    def _start(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        jars = Path(pyspark.__file__).parent / "jars"
        (self._folder / "conf").mkdir(exist_ok=True)
        (self._folder / "conf" / "log4j2.properties").write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.stderr.ref = stderr\nappender.stderr.type = Console\n"
            "appender.stderr.name = stderr\nappender.stderr.target = SYSTEM_ERR\n"
            "appender.stderr.layout.type = PatternLayout\nappender.stderr.layout.pattern = %m%n\n"
        )
        classes = f"{self._folder / 'conf'}:{jars}/*"
        memory = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                ["java", *memory, "-cp", classes, f"org.apache.spark.deploy.{kind}", *arguments],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=os.environ
                | {
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_HOME": str(jars.parent),
                    "SPARK_SCALA_VERSION": "2.13",
                    "SPARK_CONF_DIR": str(self._folder / "conf"),
                    "PYTHONPATH": str(ROOT),
                },
            )
        self._processes.append(process)
        return process

    def _said(self, name: str, line: re.Pattern[str]) -> str:
        """The first group of a line that a process logs."""
        log, until = self._folder / f"{name}.log", time.monotonic() + _PATIENCE_S
        while (found := line.search(log.read_text(errors="replace"))) is None:
            process = self._processes[0 if name == "master" else 1 + int(name.rpartition("-")[2])]
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.1)
        return found[1]
