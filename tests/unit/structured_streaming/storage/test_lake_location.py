"""What is no lake is an error that names it, at once; only `init` and `reput` make one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.logs import written
from structured_streaming.lake import create_tables
from structured_streaming.tables import TABLES
from tests.support.lakes.maintained import ReputLake


def ended(*arguments: str) -> str:
    """The one line that the command ends with."""
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, SystemExit), f"{done.exception!r}"
    assert done.exit_code not in (0, None)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def no_lakes(folder: Path) -> dict[str, str]:
    """Locations that are no lakes, and what the error says."""
    (folder / "file").write_text("x")
    (folder / "empty").mkdir()
    (folder / "others").mkdir()
    (folder / "others" / "thesis.tex").write_text("x")
    return {
        str(folder / "typo"): "typo is no lake: it does not exist",
        str(folder / "empty"): "empty is no lake: it is empty",
        str(folder / "others"): "others is no lake: it holds none of its tables",
        str(folder / "file"): "file is no lake but a file",
        str(folder / "file" / "lake"): "file/lake",
        str(folder / "a%20b"): "'%20' in a path",
        str(folder / "a\\b"): "'\\\\' in a path",
        str(folder / "a\nb"): "'\\n' in a path",
        "": "'' is empty",
        "  ": "'  ' is empty",
        "ftp://bucket/lake": "'ftp' is no kind of object store",
        "s3:///lake": "names no bucket",
        "s3://bucket/a/../b": "'/../' in it",
    }


def test_sql_names_what_is_no_lake_and_makes_nothing(tmp_path: Path) -> None:
    for location, why in no_lakes(tmp_path).items():
        before = sorted(tmp_path.rglob("*"))
        assert why in ended("sql", "--lake", location, "select 1"), location
        assert sorted(tmp_path.rglob("*")) == before


def test_reput_makes_a_lake_where_nothing_is(tmp_path: Path) -> None:
    for location, why in no_lakes(tmp_path).items():
        if Path(location).name in ("typo", "empty"):
            create_tables(location)
            assert len(list(Path(location).iterdir())) == len(TABLES)
            continue
        before = sorted(tmp_path.rglob("*"))
        line = ended("reput", "--brokers", "127.0.0.1:1", "--lake", location)
        assert why.replace("is no lake: it holds none of its tables", "is no lake, and not empty") in line
        assert sorted(tmp_path.rglob("*")) == before


def test_a_wrong_store_ends_the_reput_at_once_and_makes_no_lake(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    line = ended("reput", "--store", str(tmp_path / "typo"), "--lake", str(lake))
    assert str(tmp_path / "typo") in line
    line = ended("reput", "--brokers", "h:1", "--token-file", str(tmp_path / "token"), "--lake", str(lake))
    assert f"--token-file {tmp_path / 'token'} cannot be read" in line
    assert not lake.exists()


def test_init_makes_what_is_missing_of_a_lake(tmp_path: Path) -> None:
    for _ in range(2):
        done = CliRunner().invoke(app, ["init", "--lake", str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert done.stdout == f"{len(TABLES)} tables are in {tmp_path}\n"
        (tmp_path / "notes").write_text("x")  # beside its tables
        shutil.rmtree(tmp_path / "quarantine")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [*TABLES.keys() - {"quarantine"}, "notes"]
    )
    assert "file is no lake but a file" in ended("init", "--lake", str(_file(tmp_path)))


@pytest.mark.parametrize("command", [("init",), ("reput", "--brokers", "127.0.0.1:1")])
def test_no_lake_is_made_in_a_folder_of_something_else(tmp_path: Path, command: tuple[str, ...]) -> None:
    store = written(tmp_path / "store", "broker-a", 1)
    environment = tmp_path / "venv"
    for name in ("bin", "include", "lib", "pyvenv.cfg"):
        (environment / name).mkdir(parents=True)
    for folder, holds in ((store, "'commitlog'"), (environment, "'bin', 'include', 'lib', ...")):
        before = sorted(folder.rglob("*"))
        line = ended(*command, "--lake", str(folder))
        assert f"{folder} is no lake, and not empty: it holds " in line
        assert holds in line
        assert line.endswith("give the lake's folder, or an empty or new one")
        assert sorted(folder.rglob("*")) == before


def test_sql_names_a_table_that_is_missing(tmp_path: Path) -> None:
    create_tables(str(tmp_path))
    (tmp_path / "quarantine").rename(tmp_path.parent / "elsewhere")
    line = ended("sql", "--lake", str(tmp_path), "select 1")
    assert "lacks the table quarantine" in line
    create_tables(str(tmp_path))
    assert DeltaTable(str(tmp_path / "quarantine")).version() == 0


def test_a_table_that_batches_went_to_is_not_made_anew(tmp_path: Path) -> None:
    held = ReputLake(tmp_path)
    held.fill()
    (held.lake / "messages").rename(tmp_path / "elsewhere")
    lake = ("--lake", str(held.lake))
    for command in (("init", *lake), ("sql", *lake, "select 1"), ("lake", "check", *lake)):
        line = ended(*command)
        assert f"the lake {held.lake} lost its table messages" in line
        assert not (held.lake / "messages").exists()
    (tmp_path / "elsewhere").rename(held.lake / "messages")
    assert create_tables(str(held.lake)).path == held.lake


@pytest.mark.parametrize(
    "name", ["a b", "100%", "a'b", 'a"b', "ü漢", "a*b?[c]{d,e}", "a#b", "a:b", "a;b&c=d+e", " "]
)
def test_odd_names_hold_a_lake(tmp_path: Path, name: str) -> None:
    folder = create_tables(str(tmp_path / name)).path
    assert folder == tmp_path / name
    assert DeltaTable(str(folder / "messages")).version() == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == [name]


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    assert create_tables(folder.as_uri()).path == folder


def test_a_crash_while_tables_are_made_leaves_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def fail(path: Path, target: Path) -> None:
        made.append(path)
        if len(made) == 3:
            raise KeyboardInterrupt
        real(path, target)

    real = Path.rename
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        create_tables(str(tmp_path))
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 2
    create_tables(str(tmp_path))
    for name in TABLES:
        assert DeltaTable(str(tmp_path / name)).version() == 0


def _file(folder: Path) -> Path:
    path = folder / "file"
    path.write_text("x")
    return path
