"""Who imports whom: the product nothing of its tests, nobody the demo or the benchmarks, no part of the tests another."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("broker_gateway", "store", "structured_streaming")
OF_TESTS = ("unit", "integration", "interop", "fault")
SHARED = ("fuzz", "suite", "support")
REFUSED = {
    **dict.fromkeys(PRODUCT, ("lakebroker_testing", "tests", "demo", "benchmarks")),
    "lakebroker_testing": ("tests", "demo", "benchmarks"),
    "benchmarks": ("tests", "demo"),
    "demo": ("tests", "benchmarks"),
    "tests": ("demo", "benchmarks"),
    **{
        f"tests/{part}": tuple(f"tests.{other}" for other in OF_TESTS if other != part)
        for part in (*OF_TESTS, *SHARED)
    },
}


@functools.cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of everything that a file imports."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            begin = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join((*begin, *([node.module] if node.module else [])))
            yield node.lineno, name
            yield from ((node.lineno, f"{name}.{each.name}") for each in node.names)


@pytest.mark.parametrize("part", REFUSED)
def test_nothing_is_imported_from_where_it_must_not(part: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line} imports {refused}"
        for path in sorted((ROOT / part).rglob("*.py"))
        for line, name in imports(path)
        for refused in REFUSED[part]
        if f"{name}.".startswith(f"{refused}.")
    }
    assert not found, "what tests share belongs into lakebroker_testing, or into tests/support"


def test_the_data_source_is_where_the_readme_imports_it_and_pyspark_comes_only_with_it() -> None:
    (line,) = [each for each in (ROOT / "README.md").read_text().splitlines() if "import Lakebroker" in each]
    script = f"""
import sys
import structured_streaming
assert "pyspark" not in sys.modules
{line}
assert LakebrokerDataSource.name() == "lakebroker"
assert not hasattr(structured_streaming, "nothing")
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


@pytest.mark.parametrize("module", ["cli.main", "app.startup", "app.sidecar", "app.new_log"])
def test_a_broker_without_a_lake_needs_no_package_of_the_extras(module: str) -> None:
    script = f"""
import sys
for name in ("pyarrow", "deltalake", "obstore", "pandas", "pyspark"):
    sys.modules[name] = None
import broker_gateway.{module}
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
