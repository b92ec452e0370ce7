"""`make demo` on a machine with Debian's Python, a JDK, make and nothing prepared. What `make setup` asks for, and in which order:
`tests/unit/test_setup.py`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT
from tests.suite.evidence import LONG
from tests.support.machines.bare_root import BareRoot

PACKAGES = ("python3", "python3-venv", "openjdk-17-jdk-headless", "make", "ca-certificates")


@LONG
@pytest.mark.timeout(7200)
def test_the_demo_needs_python_a_jdk_and_make(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    took = {"root_s": 0.0, "setup_s": 0.0, "demo_s": 0.0}
    began = time.monotonic()
    root = BareRoot(tmp_path / "root", "bookworm", PACKAGES)
    took["root_s"] = time.monotonic() - began
    checkout = root.folder / "root" / "lakebroker"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    for target in ("setup", "demo"):
        began, said = time.monotonic(), tmp_path / f"{target}.log"
        status = root.run(f"make -C lakebroker {target}", said)
        took[f"{target}_s"] = time.monotonic() - began
        assert status == 0, said.read_text()[-5000:]
    said = (tmp_path / "demo.log").read_text()
    assert "Wrong answer" not in said
    assert "Done in" in said
    for name in ("index.html", "throughput-and-lag.png"):
        assert (checkout / "demo-output" / name).stat().st_size > 10_000
    for name, seconds in took.items():
        record_property(name, round(seconds))
