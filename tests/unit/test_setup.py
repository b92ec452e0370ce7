"""`make setup` as make runs it, with a Python that only notes what it is asked: what it needs, and when it begins again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lakebroker_testing.gateway import ROOT
from tests.support.waiting import LIMIT_S

TOOLS = ("cat", "cp", "find", "grep", "make", "mkdir", "rm", "touch")
"""Of a bare Debian with make; sh is found without a PATH. `cp` and `mkdir` are the noting Python's."""
PYTHON = """#!/bin/sh
echo "$*" >>{asked}
case "$*" in
  *version_info*) exit {old} ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *" install "*--editable*) test ! -e {away} ;;
esac
"""
INSTALLS = "-m uv pip install"


class Machine:
    """One with `TOOLS`, a Python and a JDK, and nothing else on its PATH."""

    def __init__(self, folder: Path, java: str = "17.0.13", *, old: bool = False) -> None:
        self._path, self._asked = folder / "bin", folder / "asked"
        self.registry_away = folder / "away"
        self.venv = folder / "venv"
        self._path.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self._path / tool).symlink_to(Path(found).absolute())
        self._put("python3", PYTHON.format(asked=self._asked, away=self.registry_away, old=int(old)))
        self._put("java", f"#!/bin/sh\necho 'openjdk version \"{java}\"' >&2\n")

    def _put(self, name: str, script: str) -> None:
        (self._path / name).write_text(script)
        (self._path / name).chmod(0o755)

    def setup(self, *options: str) -> tuple[int, str, list[str]]:
        """Status of `make setup`, what it said, and what its Python was asked."""
        self._asked.write_text("")
        done = subprocess.run(
            ["make", f"VENV={self.venv}", *options, "setup"],
            cwd=ROOT,
            env={"PATH": str(self._path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout, self._asked.read_text().splitlines()


def test_a_python_a_jdk_and_make_are_enough_and_twice_is_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    status, said, asked = machine.setup()
    assert status == 0, said
    order = (
        "version_info",
        f"-m venv {machine.venv}",
        INSTALLS,
        "compileall",
        "warm()",
        "delta_session()",
        "spark.jvm",
    )
    places = [next(place for place, each in enumerate(asked) if step in each) for step in order]
    assert places == sorted(places)
    assert machine.setup()[::2] == (0, [])


def test_an_installation_that_was_broken_off_begins_again(tmp_path: Path) -> None:
    """What half of a package is left of counts as installed."""
    machine = Machine(tmp_path)
    assert machine.setup()[0] == 0
    changed = ("-W", "pyproject.toml")
    machine.registry_away.touch()
    status, said, asked = machine.setup(*changed)
    assert status != 0
    assert "uv could not install it; pip tries" in said
    assert [" --reinstall " in each for each in asked if INSTALLS in each] == [False]
    machine.registry_away.unlink()
    status, said, asked = machine.setup()
    assert status == 0, said
    assert [" --reinstall " in each for each in asked if INSTALLS in each] == [True]
    status, said, asked = machine.setup(*changed)
    assert status == 0, said
    assert [" --reinstall " in each for each in asked if INSTALLS in each] == [False]


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ({"old": True}, "Python 3.11 or later is needed; set PYTHON="),
        ({"java": "11.0.2"}, "A JDK 17 or later is needed on the PATH"),
    ],
)
def test_what_is_too_old_is_named_before_anything_is_installed(
    tmp_path: Path, lacks: dict[str, Any], words: str
) -> None:
    machine = Machine(tmp_path, **lacks)
    status, said, asked = machine.setup()
    assert status != 0
    assert words in said
    assert not [each for each in asked if "version_info" not in each]


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        ("TEST_WORKERS=many", "a whole number or auto"),
        ("ROUNDS=0", "a whole number above 0"),
        ("BUSY=auto", "a whole number"),
    ],
)
def test_a_wrong_number_is_reported_before_anything_is_made(tmp_path: Path, number: str, wanted: str) -> None:
    machine = Machine(tmp_path)
    status, said, asked = machine.setup(number)
    assert status != 0
    assert f"{number}: {wanted} is wanted" in said
    assert asked == []
