"""A real S3 server that puts a file only where there is none: versitygw, built by Go at first use, on a free port."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import ROOT
from lakebroker_testing.ports import free_ports
from lakebroker_testing.programs import ProcessError, output_of, until_ready

_MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_CACHE = ROOT / ".cache" / "versitygw"
BUCKET = "lake"


def program() -> Path:
    """The server's program."""
    if shutil.which("go") is None:
        raise ProcessError("go is not on the PATH; the S3 server of these tests is built with it")
    with filled_once(_CACHE, _MODULE) as missing:
        if missing:
            environment = os.environ | {"GOBIN": str(_CACHE), "GOFLAGS": "-mod=mod"}
            output_of(["go", "install", _MODULE], env=environment)
    return _CACHE / "versitygw"


class ObjectStore:
    """A server with one bucket, whose objects are files in `folder`. `environment` says to clients where it is."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.folder = folder
        self._address = address
        self.port = free_ports(1)[0]
        self.url = f"http://{address}:{self.port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "lakebroker",
            "AWS_SECRET_ACCESS_KEY": "of-these-tests-alone",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        (folder / BUCKET).mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it answers."""
        environment = os.environ | {
            "ROOT_ACCESS_KEY": self.environment["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": self.environment["AWS_SECRET_ACCESS_KEY"],
        }
        command = [
            str(program()),
            "--port",
            f"{self._address}:{self.port}",
            "--quiet",
            "posix",
            str(self.folder),
        ]
        log = self.folder.with_suffix(".log")
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=out)
        until_ready("the S3 server", self._process, log, self._answers)

    def kill(self) -> None:
        """SIGKILL, as a host that is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """From now on it takes connections and answers nothing, until `kill`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.environment["AWS_ENDPOINT_URL"], timeout=1).close()
        except urllib.error.HTTPError:
            return True  # it wants to know who asks
        except OSError:
            return False
        return True


@contextmanager
def object_store(folder: Path, address: str = "127.0.0.1") -> Iterator[ObjectStore]:
    """A running server, which is killed at the end."""
    store = ObjectStore(folder, address)
    store.start()
    try:
        yield store
    finally:
        store.kill()
