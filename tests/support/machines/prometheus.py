"""Prometheus' own programs, `promtool` and the server: those on the PATH, or of Debian's package, unpacked under `.cache` at first use."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import ROOT
from lakebroker_testing.programs import ProcessError, output_of, until_ready
from tests.support.waiting import LIMIT_S

_PACKAGE = "prometheus"
_CACHE = ROOT / ".cache" / "prometheus"
_LISTENS = re.compile(r'msg="Listening on" address=(\S+)')


def promtool(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """What it says, both outputs together, with `given` as its input; its status is left to the caller. Raises ProcessError where there is none."""
    return subprocess.run(
        [program("promtool"), *arguments],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`. Raises ProcessError where there is none."""
    if (there := shutil.which(name)) is not None:
        return there
    if shutil.which("apt-get") is None:
        raise ProcessError(
            f"{name} is not on the PATH, and there is no apt-get to fetch it with: install Prometheus"
        )
    with filled_once(_CACHE, _PACKAGE) as missing:
        if missing:
            for left in _CACHE.glob("*.deb"):
                left.unlink()
            try:
                output_of(["apt-get", "download", _PACKAGE], cwd=_CACHE)
            except ProcessError:  # its lists are old, or there are none
                output_of(["apt-get", "update"], cwd=_CACHE)
                output_of(["apt-get", "download", _PACKAGE], cwd=_CACHE)
            (package,) = _CACHE.glob("*.deb")
            output_of(["dpkg", "-x", str(package), str(_CACHE)], cwd=_CACHE)
            package.unlink()
    return str(_CACHE / "usr" / "bin" / name)


class Prometheus:
    """A server that scrapes `targets` (HOST:PORT by job) every second into `folder`, with the rules of a file, on a free port of the
    loopback interface."""

    def __init__(self, folder: Path, targets: dict[str, Sequence[str]], rules: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._log = folder / "prometheus.log"
        self._file = folder / "prometheus.yml"
        self._targets = sum(map(len, targets.values()))
        jobs = [{"job_name": job, "static_configs": [{"targets": list(at)}]} for job, at in targets.items()]
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        self._file.write_text(
            yaml.safe_dump({"global": every, "rule_files": [str(rules)], "scrape_configs": jobs})
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def __enter__(self) -> Prometheus:
        """Returns when it answers, and has scraped each target. Raises ProcessError."""
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
        found = until_ready(
            "Prometheus", self._process, self._log, lambda: _LISTENS.search(self._log.read_text())
        )
        self._url = f"http://{found[1]}"
        until_ready("Prometheus", self._process, self._log, self._ready)
        until_ready("Prometheus", self._process, self._log, self._has_scraped)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _ready(self) -> bool:
        """It listens before it has read what it kept, and answers 503 until then."""
        try:
            urllib.request.urlopen(f"{self._url}/-/ready", timeout=LIMIT_S).close()
        except urllib.error.HTTPError:
            return False
        return True

    def _has_scraped(self) -> bool:
        up = [value for _, value in self.samples("up")]
        return len(up) == self._targets and all(up)

    def asked(self, what: str, **parameters: str) -> Any:
        """The data of an answer of its API. Raises ProcessError with what it says is wrong."""
        try:
            with urllib.request.urlopen(
                f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}", timeout=LIMIT_S
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ProcessError(f"Prometheus on {what} {parameters}: {error.read().decode()}") from error

    def samples(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that a query answers now. Raises ProcessError."""
        result = self.asked("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]
