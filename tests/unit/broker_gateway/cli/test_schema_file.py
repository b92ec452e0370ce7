"""A Protobuf schema as a `.proto` and as a descriptor set, with imports: both are the same, and bodies are read by them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from typer.testing import CliRunner, Result

from broker_gateway.cli.main import app
from broker_gateway.cli.schema_file import read_schema
from structured_streaming.typed.protobuf_bodies import ProtobufBodies
from tests.support.waiting import LIMIT_S

ORDER = """
syntax = "proto3";
package shop;
import "shop/money.proto";
import "google/protobuf/timestamp.proto";
message Outer {
  message Order {
    int64 id = 1;
    Money total = 2;
    optional string note = 3;
    google.protobuf.Timestamp at = 4;
    repeated base.Tag tags = 5;
    Kind kind = 6;
  }
  enum Kind { NONE = 0; RETAIL = 1; }
}
"""
MONEY = """
syntax = "proto2";
package shop;
import public "base/tag.proto";
message Money { required int64 amount = 1; optional string currency = 2 [default = "EUR"]; }
"""
TAG = """
edition = "2023";
package base;
message Tag { string name = 1; }
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in (("shop/order", ORDER), ("shop/money", MONEY), ("base/tag", TAG)):
        file = tmp_path / "protos" / f"{name}.proto"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "protos"


def check(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["typed", "check", "--json", *arguments])


def of_order(root: Path, *more: str) -> Result:
    return check("--schema", str(root / "shop" / "order.proto"), "--message", "shop.Outer.Order", *more)


def compiled(root: Path, made: Path, *more: str) -> Path:
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", *more]
    subprocess.run([*protoc, f"--descriptor_set_out={made}", "shop/order.proto"], check=True, timeout=LIMIT_S)
    return made


def test_a_proto_with_imports_is_what_its_descriptor_set_is(root: Path, tmp_path: Path) -> None:
    by_text = of_order(root, "--proto-path", str(root))
    assert by_text.exit_code == 0, by_text.output
    made = compiled(root, tmp_path / "order.desc", "--include_imports")
    by_set = check("--schema", str(made), "--message", "shop.Outer.Order")
    assert json.loads(by_text.stdout) == json.loads(by_set.stdout)
    types = {each["field"]: each["type"] for each in json.loads(by_text.stdout)["columns"]}
    assert types == {
        "id": "int64",
        "total": "struct<amount: int64, currency: string>",
        "note": "string",
        "at": "timestamp[us, tz=UTC]",
        "tags": "list<item: struct<name: string>>",
        "kind": "string",
    }


def test_bodies_are_read_by_it(root: Path) -> None:
    _, schema = read_schema(root / "shop" / "order.proto", "", "shop.Outer.Order", [root])
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(schema.text)).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Outer.Order"))
    good = order(id=7, kind=1, at={"seconds": 9}, tags=[{"name": "a"}])
    good.total.amount = 5
    lacking = order(id=8)
    lacking.total.currency = "JPY"
    bodies = [good.SerializeToString(), lacking.SerializePartialToString()]
    decoded = ProtobufBodies([schema]).decode(pa.array(bodies, pa.binary()))
    row = decoded.values.to_pylist()[0]
    assert (row["id"], row["total"]["amount"], row["note"], row["kind"]) == (7, 5, None, "RETAIL")
    assert (row["at"].second, row["tags"]) == (9, [{"name": "a"}])
    assert decoded.reasons == [None, "required fields are missing: total.amount"]


def test_imports_beside_the_file_need_no_option(root: Path) -> None:
    (root / "plain.proto").write_text(ORDER)
    done = check("--schema", str(root / "plain.proto"), "--message", "shop.Outer.Order")
    assert done.exit_code == 0, done.output


def test_what_cannot_be_compiled_is_named(root: Path, tmp_path: Path) -> None:
    done = of_order(root)
    assert done.exit_code == 1
    assert "shop/money.proto: File not found" in done.stderr
    assert "with --proto-path" in done.stderr
    done = of_order(root, "--proto-path", str(tmp_path / "nothing"))
    assert f"--proto-path {tmp_path}/nothing is no folder" in done.stderr
    (root / "base" / "tag.proto").write_text(TAG + 'import "shop/order.proto";')
    assert "imports itself" in of_order(root, "--proto-path", str(root)).stderr
    (root / "base" / "tag.proto").write_text(TAG + "message {")
    assert "base/tag.proto:5:" in of_order(root, "--proto-path", str(root)).stderr


def test_descriptor_sets_that_cannot_be_used_are_named(root: Path, tmp_path: Path) -> None:
    without = compiled(root, tmp_path / "without.desc")
    done = check("--schema", str(without), "--message", "shop.Outer.Order")
    assert done.exit_code == 1
    assert (
        "imports shop/money.proto, which is not in it; make the descriptor set with --include_imports"
        in done.stderr
    )
    whole = compiled(root, tmp_path / "whole.desc", "--include_imports")
    done = check("--schema", str(whole), "--message", "shop.Order")
    assert "has no message 'shop.Order'; it has" in done.stderr
    assert "shop.Outer" in done.stderr
    done = check("--schema", str(whole), "--message", "shop.Outer.Order", "--proto-path", str(root))
    assert "is for a .proto" in done.stderr
