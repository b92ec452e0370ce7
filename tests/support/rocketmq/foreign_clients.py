"""Clients of other languages, fetched from their registries and built at first use.

`clients/<language>/` holds a program on the official RocketMQ client that sends, receives and acks, and prints
`OK <messages>`; `clients/grpc-<language>/` one on plain gRPC that goes through the behaviour suite.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import ROOT, ProcessError
from lakebroker_testing.java_program import compiled
from lakebroker_testing.official_client import interpreter
from lakebroker_testing.programs import output_of

_PROGRAMS = Path(__file__).parent / "clients"
_CACHE = ROOT / ".cache" / "official-clients"
_JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For programs that run a short time."""


def _need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise ProcessError(
                f"{tool} is not on the PATH; the official clients need a JDK, Maven, Node with npm, Go"
            )


def java(name: str, program: str) -> list[str]:
    """The command that runs a Java program."""
    _need("java", "mvn")
    jars = _CACHE / name
    with filled_once(jars) as missing:
        if missing:
            copy = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
            output_of(["mvn", "-q", "-B", "-f", str(_PROGRAMS / name / "pom.xml"), *copy])
    source = _PROGRAMS / name / program
    classes = compiled(source, f"{jars}/*")
    return [*_JAVA, f"-Duser.home={_CACHE / 'home'}", "-cp", f"{jars}/*:{classes}", source.stem]


def node(program: str = "client.js") -> list[str]:
    """The command that runs a Node program."""
    _need("node", "npm")
    folder = _CACHE / "node"
    with filled_once(folder) as missing:
        if missing:
            shutil.copy(_PROGRAMS / "node" / "package.json", folder)
            output_of(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=folder)
    return ["env", f"NODE_PATH={folder / 'node_modules'}", "node", str(_PROGRAMS / "node" / program)]


def go(name: str, package: str = "") -> list[str]:
    """The command that runs a Go program: that of the folder `name`, or of a package in it."""
    _need("go")
    sources = hashlib.sha256()
    for file in sorted(each for each in (_PROGRAMS / name).rglob("*") if each.is_file()):
        sources.update(file.read_bytes())
    folder = _CACHE / f"{name}-{package or 'client'}"
    program = folder / "program"
    with filled_once(folder, sources.hexdigest()) as missing:
        if missing:
            output_of(["go", "build", "-o", str(program), f"./{package}"], cwd=_PROGRAMS / name)
    return [str(program)]


def python(program: str) -> list[str]:
    """The command that runs a Python program, by the interpreter that has the official client."""
    return [str(interpreter()), "-P", str(_PROGRAMS / "python" / program)]


OFFICIAL: dict[str, Callable[[], list[str]]] = {
    "java": lambda: java("java", "Client.java"),
    "node": node,
    "go": lambda: go("go"),
}
PUT_OFF: dict[str, Callable[[], list[str]]] = {
    "java": lambda: java("java", "PutOff.java"),
    "node": lambda: node("put_off.js"),
    "go": lambda: go("go", "putoff"),
    "python": lambda: python("put_off.py"),
}
"""Programs that send delayed and transactional messages, and print what they see of them."""
LITE = partial(java, "java", "Lite.java")
"""Sends to lite topics and consumes from them."""
PLAIN: dict[str, Callable[[], list[str]]] = {
    "grpc-java": lambda: java("grpc-java", "Behaviour.java"),
    "grpc-go": lambda: go("grpc-go"),
}
