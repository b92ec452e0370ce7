"""Who can read a store: modes of what is made, of what was there before, and of files with secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_gateway.auth.policy import TokenPolicy
from broker_gateway.runtime.errors import OptionError
from broker_gateway.transport.certificates import server_context, trial_certificate
from store.log import permissions
from store.log.record import Host, PendingRecord
from store.log.segment import make_folder
from store.message_store import MessageStore
from store.opening import StoreOptions

HOST = Host("127.0.0.1", 10911)


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """That of a shell."""
    before = os.umask(0o022)
    yield
    permissions.use(group_read=False)
    os.umask(before)


def fill(folder: Path) -> MessageStore:
    store = MessageStore.open(
        folder / "store",
        StoreOptions(
            broker="b",
            cluster="c",
            store_host=HOST,
            segment_size=1 << 20,
            commit_log_paths=[folder / "store" / "commitlog", folder / "other"],
        ),
    )
    for number in range(2500):
        store.append([PendingRecord("t", number % 3, bytes(1000), b"", 1, HOST.packed)])
    store.close()
    return store


def modes(folder: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {"folders": set(), "files": set()}
    for path in folder.rglob("*"):
        found["folders" if path.is_dir() else "files"].add(stat.S_IMODE(path.stat().st_mode))
    return found


def test_a_store_is_for_its_user_alone(tmp_path: Path) -> None:
    store = fill(tmp_path)
    assert store.recovered.closed == (0, [], None)
    assert modes(tmp_path) == {"folders": {0o700}, "files": {0o600}}


def test_a_group_may_read_where_that_is_asked_for(tmp_path: Path) -> None:
    permissions.use(group_read=True)
    fill(tmp_path)
    assert modes(tmp_path) == {"folders": {0o750}, "files": {0o640}}
    assert fill(tmp_path).recovered.closed.changed == 0


def test_an_open_store_is_closed_once(tmp_path: Path) -> None:
    fill(tmp_path)
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (tmp_path / "store" / "config").mkdir(mode=0o755)
    (tmp_path / "store" / "config" / "topics.json").write_text("{}")
    outside = tmp_path / "outside"
    outside.write_text("of somebody else")
    (tmp_path / "store" / "commitlog" / "link").symlink_to(outside)
    assert fill(tmp_path).recovered.closed.changed > 6
    assert outside.stat().st_mode & 0o777 == 0o644, "no link is followed"
    outside.unlink()
    (tmp_path / "store" / "commitlog" / "link").unlink()
    assert modes(tmp_path) == {"folders": {0o700}, "files": {0o600}}
    assert fill(tmp_path).recovered.closed == (0, [], None)


def test_what_belongs_to_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    lock = tmp_path / "store" / "lock"
    lock.chmod(0o666)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    assert fill(tmp_path).recovered.closed == (0, [lock], None)


def test_folders_above_are_not_touched(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert modes(tmp_path) == {"folders": {0o700}, "files": set()}


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o666, 0o602])
def test_secrets_that_others_can_read_are_refused(tmp_path: Path, mode: int) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(mode)
    with pytest.raises(OptionError, match=f"lakeTokenFile={token} can be read by every user.*chmod 600"):
        TokenPolicy(token)
    certificate, key = trial_certificate(tmp_path, "127.0.0.1")
    key.chmod(mode)
    with pytest.raises(OptionError, match=f"tlsKeyPath={key} can be read by every user.*chmod 600"):
        server_context(certificate, key)
    for path in (token, key):
        path.chmod(0o640)
    TokenPolicy(token)
    server_context(certificate, key)
