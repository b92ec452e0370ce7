"""Build hook: compiles `proto/` into the package `lakebroker_pb` (messages and type stubs).

Owns code generation only. Services have no generated stubs: a transport binds them by descriptor.
The files keep their wire names (`apache/rocketmq/v2/…`); only the Python imports move under
`lakebroker_pb`, so that the package does not claim the top-level name `apache`.

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
_IMPORT = re.compile(r"^(from|import) (apache|lakebroker)(?=[.\s])", re.MULTILINE)


def generate() -> None:
    """Compiles every `.proto` file under `proto/`; raises SystemExit with protoc's status on an error."""
    from grpc_tools import protoc

    include = Path(protoc.__file__).parent / "_proto"
    staging = TARGET.with_suffix(".tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    files = sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.proto"))
    arguments = [f"-I{SOURCE}", f"-I{include}", f"--python_out={staging}", f"--pyi_out={staging}", *files]
    if status := protoc.main(["protoc", *arguments]):
        raise SystemExit(f"protoc failed with status {status} on {', '.join(files)}")
    for path in [*staging.rglob("*.py"), *staging.rglob("*.pyi")]:
        path.write_text(_IMPORT.sub(r"\1 lakebroker_pb.\2", path.read_text()))
    for folder in [staging, *(path for path in staging.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").touch()
    (staging / "py.typed").touch()
    shutil.rmtree(TARGET, ignore_errors=True)
    staging.rename(TARGET)


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
