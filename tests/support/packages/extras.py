"""What the base package and its extras ask for, and a Python that has no more than that: for tests of what needs which.

`bare_python` gives a program for an interpreter in which only those packages can be imported that a machine with some extras
has, though more are installed.
"""

from __future__ import annotations

import functools
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
NAME = "lakebroker"
SPARK = ("pyspark", "py4j")
"""What a Spark cluster has."""
_BARE = """
import sys
class Without:
    def __init__(self, finder): self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {names!r}: return self.finder.find_spec(name, path, target)
    def __getattr__(self, name): return getattr(self.finder, name)
sys.meta_path[:] = [Without(each) for each in sys.meta_path]
"""


@functools.cache
def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def extras() -> tuple[str, ...]:
    """The names of all of them."""
    return tuple(_project()["optional-dependencies"])


def requirements(*extras: str) -> list[str]:
    """What pip is asked for by the base package with these extras, those that they name themselves opened up."""
    found = dict.fromkeys(_project()["dependencies"])
    for extra in extras:
        for line in _project()["optional-dependencies"][extra]:
            asked = Requirement(line)
            found |= dict.fromkeys(requirements(*asked.extras) if asked.name == NAME else [line])
    return list(found)


def asked_for(*extras: str) -> set[str]:
    """The distributions that the base package and these extras name."""
    return {canonicalize_name(Requirement(line).name) for line in requirements(*extras)}


def brought(*extras: str) -> set[str]:
    """The distributions that come with them, as far as they are installed here."""
    found: set[str] = set()
    open_ = [Requirement(line) for line in requirements(*extras)]
    while open_:
        asked = open_.pop()
        name = canonicalize_name(asked.name)
        if name in found or (asked.marker and not asked.marker.evaluate({"extra": ""})):
            continue
        try:
            more = requires(name) or []
        except PackageNotFoundError:
            continue
        found.add(name)
        open_ += map(Requirement, more)
    return found


@functools.cache
def distributions() -> dict[str, set[str]]:
    """Of each importable name that is installed here, the distributions that it is of."""
    return {
        name: {canonicalize_name(each) for each in found} for name, found in packages_distributions().items()
    }


def bare_python(program: str, *extras: str, besides: tuple[str, ...] = ()) -> str:
    """The program, run as if only the base package and these extras were installed, and `besides` (distributions)."""
    there = brought(*extras) | {*besides, NAME}
    names = {name for name, found in distributions().items() if not found & there}
    return _BARE.format(names=names) + program
