"""What a program imports at its start. Who may import whom is import-linter's, in `make check`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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


def test_a_broker_without_a_lake_needs_no_package_of_the_extras() -> None:
    script = """
import sys
for name in ("pyarrow", "deltalake", "obstore", "pandas", "pyspark"):
    sys.modules[name] = None
import broker_gateway.cli.main, broker_gateway.app.startup, broker_gateway.app.sidecar, broker_gateway.app.new_log
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
