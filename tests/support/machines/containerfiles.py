"""A container file's instructions, for tests without a container engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from lakebroker_testing.gateway import ROOT

CONTAINERS = ROOT / "deploy" / "containers"


class Instruction(NamedTuple):
    """Of a stage, which is numbered from 0."""

    stage: int
    name: str
    rest: str


def instructions(file: Path) -> list[Instruction]:
    """In order, with continued lines joined."""
    text = re.sub(
        r"\\\n",
        " ",
        "".join(line for line in file.read_text().splitlines(keepends=True) if not line.startswith("#")),
    )
    found, stage = [], -1
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        found.append(Instruction(stage, name, rest.strip()))
    return found


def the(file: Path, name: str) -> str:
    """The last stage's one instruction of that name."""
    every = instructions(file)
    (found,) = [each for each in every if each.name == name and each.stage == every[-1].stage]
    return found.rest


def command_of(rest: str) -> list[str]:
    """The exec form, behind the options of HEALTHCHECK too."""
    return [str(each) for each in json.loads(rest[rest.index("[") :])]


def environment(file: Path) -> dict[str, str]:
    """What the last stage's ENV sets."""
    return dict(part.partition("=")[::2] for part in the(file, "ENV").split())


def copied(file: Path) -> list[str]:
    """What the build's stage takes from the source folder."""
    rests = [each.rest for each in instructions(file) if each.name == "COPY" and "--from" not in each.rest]
    return [source for rest in rests for source in rest.split()[:-1]]
