"""Build hook: compiles `proto/` into the package `lakebroker_pb` (messages and type stubs).

Owns code generation only. Services have no generated stubs: a transport binds them by descriptor.
The files keep their wire names (`apache/rocketmq/v2/…`); only the Python imports move under
`lakebroker_pb`, so that the package does not claim the top-level name `apache`.

All of them are in a descriptor pool of their own (`lakebroker_pb.pool`): RocketMQ's Python client registers messages of
the same names in the process's default pool. A pool has nothing of another one, so that Google's `Any`, `Timestamp`
and `Duration` are compiled into it too; only `lakebroker_pb.google.protobuf` has the ones that our messages take.

Usage without a build: `python hatch_build.py`.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "proto"
TARGET = ROOT / "lakebroker_pb"
IMPORTED = tuple(f"google/protobuf/{name}.proto" for name in ("any", "duration", "timestamp"))
"""Google's files that ours import, or carry messages of."""
_IMPORT = re.compile(
    r"^(from|import) (apache|arrow|lakebroker|google\.protobuf(?= import (?:any|duration|timestamp)_pb2))(?=[.\s])",
    re.MULTILINE,
)
_DEFAULT_POOL = "_descriptor_pool.Default()"
_IMPORTS_END = "# @@protoc_insertion_point(imports)\n"
_POOL = '''"""The descriptors of this package, apart from the process's default ones."""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
'''


def generate() -> None:
    """Compiles every `.proto` file under `proto/`; raises SystemExit with protoc's status on an error."""
    from grpc_tools import protoc

    include = Path(protoc.__file__).parent / "_proto"
    staging = TARGET.with_suffix(".tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    files = sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.proto"))
    arguments = [
        f"-I{SOURCE}",
        f"-I{include}",
        f"--python_out={staging}",
        f"--pyi_out={staging}",
        *files,
        *IMPORTED,
    ]
    if status := protoc.main(["protoc", *arguments]):
        raise SystemExit(f"protoc failed with status {status} on {', '.join(files)}")
    for path in [*staging.rglob("*.py"), *staging.rglob("*.pyi")]:
        path.write_text(_in_package(path))
    (staging / "pool.py").write_text(_POOL)
    for folder in [staging, *(path for path in staging.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").touch()
    (staging / "py.typed").touch()
    shutil.rmtree(TARGET, ignore_errors=True)
    staging.rename(TARGET)


def _in_package(path: Path) -> str:
    """A generated file's text with its imports under `lakebroker_pb`, and the package's pool in place of the default one.

    Raises SystemExit when protoc no longer writes what is replaced: the messages would be in the default pool.
    """
    text = _IMPORT.sub(r"\1 lakebroker_pb.\2", path.read_text())
    if path.suffix == ".pyi":
        return text
    for replaced in (_DEFAULT_POOL, _IMPORTS_END):
        if text.count(replaced) != 1:
            raise SystemExit(
                f"protoc wrote {path.name} without one {replaced.strip()}; adapt {Path(__file__).name}"
            )
    text = text.replace(_DEFAULT_POOL, "_POOL")
    return text.replace(_IMPORTS_END, f"{_IMPORTS_END}from lakebroker_pb.pool import POOL as _POOL\n")


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run by hand, without the build backend
    pass
else:

    class ProtobufBuildHook(BuildHookInterface[Any]):
        """Runs `generate` before hatchling collects files (wheel, sdist and editable)."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            generate()


if __name__ == "__main__":
    generate()
    sys.stdout.write(f"generated {TARGET}\n")
