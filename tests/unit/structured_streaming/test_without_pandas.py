"""Each in a Python of its own: whether pandas was imported is asked of the process."""

import os
import subprocess
import sys

from lakebroker_testing.gateway import ROOT
from structured_streaming.without_pandas import WITHOUT_PANDAS


def ran(script: str, **environment: str) -> None:
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=os.environ | environment, check=True)


def test_arrays_are_made_without_pandas_and_spark_gets_it_all_the_same() -> None:
    ran("""
import sys
from structured_streaming.without_pandas import leave_pandas_out, let_pandas_in
leave_pandas_out()
leave_pandas_out()
import pyarrow as pa
table = pa.table({"a": pa.array([1, 2])})
assert "pandas" not in sys.modules
let_pandas_in()
assert table.to_pandas()["a"].sum() == 3
""")


def test_a_worker_of_a_reput_makes_arrays_without_pandas_and_one_that_others_use_is_left_alone() -> None:
    script = """
import sys
import structured_streaming.reput_source
import structured_streaming.source.data_source
assert "pandas" not in sys.modules, "none of them makes an array to be imported"
import pyarrow as pa
pa.array([1])
assert ("pandas" in sys.modules) is {}
"""
    ran(script.format(False), **{WITHOUT_PANDAS: "1"})
    ran(script.format(True))
