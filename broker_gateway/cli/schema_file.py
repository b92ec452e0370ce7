"""A schema as a user has it in a file."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from structured_streaming.errors import LakeError
from structured_streaming.typed.declaration import AVRO, FORMATS, JSON, MOST_SCHEMA, PROTOBUF, Schema

_BY_ENDING = {
    ".json": JSON,
    ".avsc": AVRO,
    ".proto": PROTOBUF,
    ".desc": PROTOBUF,
    ".pb": PROTOBUF,
    ".protoset": PROTOBUF,
    ".binpb": PROTOBUF,
}


_COMPILE_S = 60


def read_schema(
    file: Path, form: str = "", message: str = "", roots: Sequence[Path] = ()
) -> tuple[str, Schema]:
    """Format and schema of a file. `form` empty: by its name. `roots`: folders in which a .proto's imports are looked for, else its own.

    Raises LakeError, naming what to give.
    """
    kind = form or _BY_ENDING.get(file.suffix, "")
    if kind not in FORMATS:
        raise LakeError(
            f"--format {form}: give json, avro or protobuf"
            if form
            else f"the name of {file} does not tell what schema it is; give --format"
        )
    if message and kind != PROTOBUF:
        raise LakeError(f"--message {message} is for Protobuf; leave it out")
    if kind == PROTOBUF and not message:
        raise LakeError(
            "a Protobuf schema may have several messages; name the topic's with --message, such as shop.Order"
        )
    if roots and file.suffix != ".proto":
        raise LakeError(f"--proto-path {roots[0]} is for a .proto; leave it out")
    content = _content(file)
    if kind == PROTOBUF:
        content = _compiled(file, roots) if file.suffix == ".proto" else content
        return kind, Schema(1, base64.b64encode(content).decode(), message)
    try:
        return kind, Schema(1, content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise LakeError(f"schema {file} is no UTF-8 text: {error}") from error


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_SCHEMA + 1)
    except OSError as error:
        raise LakeError(f"schema {file} cannot be read: {error.strerror or error}") from error
    if len(content) > MOST_SCHEMA:
        raise LakeError(f"schema {file} is larger than {MOST_SCHEMA:,} bytes")
    return content


def _compiled(file: Path, roots: Sequence[Path]) -> bytes:
    """The descriptor set of a .proto and what it imports."""
    if find_spec("grpc_tools") is None:
        raise LakeError(
            f"{file} has to be compiled, and grpcio-tools is not installed: pip install grpcio-tools; or give a descriptor set "
            f"(protoc --include_imports --descriptor_set_out=FILE.desc {file.name})"
        )
    for root in roots:
        if not root.is_dir():
            raise LakeError(f"--proto-path {root} is no folder")
    whole, folders = file.resolve(), [root.resolve() for root in roots]
    if not any(whole.is_relative_to(folder) for folder in folders):
        folders.append(whole.parent)
    with tempfile.TemporaryDirectory(prefix="lakebroker-proto-") as folder:
        made = Path(folder) / "set.desc"
        arguments = [
            *(f"-I{folder}" for folder in folders),
            "--include_imports",
            f"--descriptor_set_out={made}",
            str(whole),
        ]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "grpc_tools.protoc", *arguments],
                capture_output=True,
                text=True,
                check=False,
                timeout=_COMPILE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise LakeError(f"{file} cannot be compiled: protoc takes more than {_COMPILE_S} s") from error
        if done.returncode:
            said = done.stderr.strip()
            remedy = (
                "; give the folder that its imports begin at with --proto-path"
                if "File not found" in said
                else ""
            )
            raise LakeError(f"{file} cannot be compiled: {said[:1000]}{remedy}")
        return made.read_bytes()
