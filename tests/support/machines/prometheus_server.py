"""A real Prometheus that scrapes every second, on a free port of the loopback interface, ended by its id."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lakebroker_testing.gateway import ProcessError
from tests.support.machines.promtool import program

START_S = 60


class Prometheus:
    """Scrapes `targets` (HOST:PORT by job) into `folder`, with the rules of a file."""

    def __init__(self, folder: Path, targets: dict[str, Sequence[str]], rules: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._log = folder / "prometheus.log"
        self._file = folder / "prometheus.yml"
        jobs = [{"job_name": job, "static_configs": [{"targets": list(at)}]} for job, at in targets.items()]
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        self._file.write_text(
            yaml.safe_dump({"global": every, "rule_files": [str(rules)], "scrape_configs": jobs})
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def __enter__(self) -> Prometheus:
        """Returns when it listens. Raises ProcessError."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={self._file}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        until = time.monotonic() + START_S
        while not (found := re.search(r'msg="Listening on" address=(\S+)', self._log.read_text())):
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                raise ProcessError(f"Prometheus did not start: {self._log.read_text()[-3000:]}")
            time.sleep(0.05)
        self._url = f"http://{found[1]}/api/v1"
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def asked(self, what: str, **parameters: str) -> Any:
        """The data of an answer of its API. Raises ProcessError with what it says is wrong."""
        try:
            with urllib.request.urlopen(
                f"{self._url}/{what}?{urllib.parse.urlencode(parameters)}", timeout=30
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ProcessError(f"Prometheus on {what} {parameters}: {error.read().decode()}") from error

    def samples(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that a query answers now. Raises ProcessError."""
        result = self.asked("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]
