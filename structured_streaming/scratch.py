"""Temporary folders that go with the process."""

from __future__ import annotations

import atexit
import shutil
import tempfile


def scratch_folder() -> str:
    """A new folder for what Spark leaves on disk; removed when the interpreter ends."""
    folder = tempfile.mkdtemp(prefix="lakebroker-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
