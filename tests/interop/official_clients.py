"""The official clients of other languages, fetched from their registries and built at first use.

`clients/<language>/` holds a program that sends, receives and acks, and prints `OK <messages>`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from demo.processes import ROOT, ProcessError

_PROGRAMS = Path(__file__).parent / "clients"
_CACHE = ROOT / ".cache" / "official-clients"


def _need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise ProcessError(
                f"{tool} is not on the PATH; the official clients need a JDK, Maven, Node with npm, Go"
            )


def _run(*command: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProcessError(f"{' '.join(command)}: {done.stdout[-1500:]}{done.stderr[-1500:]}")


def java() -> list[str]:
    """The command that runs the Java program."""
    _need("java", "mvn")
    jars = _CACHE / "java"
    if not (jars / "complete").exists():
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        _run("mvn", "-q", "-B", "-f", str(_PROGRAMS / "java" / "pom.xml"), *copy)
        (jars / "complete").touch()
    home = _CACHE / "home"
    return ["java", f"-Duser.home={home}", "-cp", f"{jars}/*", str(_PROGRAMS / "java" / "Client.java")]


def node() -> list[str]:
    """The command that runs the Node program."""
    _need("node", "npm")
    folder = _CACHE / "node"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(_PROGRAMS / "node" / "package.json", folder)
        _run("npm", "install", "--silent", "--no-audit", "--no-fund", folder=folder)
        (folder / "complete").touch()
    shutil.copy(_PROGRAMS / "node" / "client.js", folder)
    return ["node", str(folder / "client.js")]


def go() -> list[str]:
    """The command that runs the Go program."""
    _need("go")
    _CACHE.mkdir(parents=True, exist_ok=True)
    _run("go", "build", "-o", str(_CACHE / "go-client"), ".", folder=_PROGRAMS / "go")
    return [str(_CACHE / "go-client")]


LANGUAGES: dict[str, Callable[[], list[str]]] = {"java": java, "node": node, "go": go}
