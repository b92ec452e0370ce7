"""The KV table and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_gateway.nameserver import kv_config
from broker_gateway.nameserver.kv_config import KVConfig
from broker_gateway.nameserver.state import load_kv_config
from broker_gateway.protocol.body.tables import KVTable
from broker_gateway.protocol.errors import RequestError
from broker_gateway.runtime.errors import HostError
from broker_gateway.runtime.files import write_whole


def test_a_change_is_another_table() -> None:
    empty = KVConfig()
    one = empty.put("n", "k", "v")
    two = one.put("n", "k2", "ü").put("m", "k", "")
    assert empty.get("n", "k") is None
    assert (one.get("n", "k"), one.get("n", "k2")) == ("v", None)
    assert two.listed("n") == KVTable({"k": "v", "k2": "ü"}).encode()
    assert two.get("m", "k") == ""
    assert two.delete("n", "k").listed("n") == KVTable({"k2": "ü"}).encode()
    assert one.delete("n", "k").listed("n") == KVTable({}).encode(), "the namespace stays"
    assert empty.delete("n", "k").listed("n") is None
    assert two.listed("n") is two.listed("n"), "encoded once"


def test_file_is_the_originals() -> None:
    text = '{"configTable":{"ORDER_TOPIC_CONFIG":{"t":"broker-a:4"}}}'
    table = KVConfig.decode(text.encode())
    assert table.get("ORDER_TOPIC_CONFIG", "t") == "broker-a:4"
    assert table.encode() == text
    assert KVConfig.decode(b"").encode() == '{"configTable":{}}'


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "MAX_CHARACTERS", 10)
    table = KVConfig().put("n", "k", "x" * 8)
    with pytest.raises(RequestError, match="at most 10 characters"):
        table.put("n", "k", "x" * 9)


def test_files_are_written_whole_with_the_one_before_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kv.json"
    for text in ("one", "two", "three"):
        write_whole(path, text)
    assert path.read_text() == "three"
    assert path.with_name("kv.json.bak").read_text() == "two"
    assert sorted(each.name for each in path.parent.iterdir()) == ["kv.json", "kv.json.bak"]


@pytest.mark.parametrize("text", ["{", "[]", '{"configTable":{"n":{"k":1}}}'])
def test_a_broken_file_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kv.json"
    path.write_text(text)
    with pytest.raises(HostError, match=rf"{path} cannot be used: .*; restore it"):
        load_kv_config(path)
    assert HostError.exit_code == 254


def test_no_file_is_an_empty_table(tmp_path: Path) -> None:
    assert load_kv_config(tmp_path / "none").listed("n") is None
