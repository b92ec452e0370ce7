"""What rows of `reput_progress` say of tables, by arrays: there is one for each batch for as long as the lake lives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def names_table(versions: pa.MapArray, table: str) -> NDArray[np.bool_]:
    """In which rows of a chunk of `table_versions` a table is named; in none that is null."""
    named = pc.equal(versions.keys, table).to_numpy(zero_copy_only=False)
    counts = np.concatenate([[0], np.cumsum(named)])
    offsets: NDArray[Any] = versions.offsets.to_numpy()
    valid = versions.is_valid().to_numpy(zero_copy_only=False)
    there: NDArray[np.bool_] = (counts[offsets[1:]] > counts[offsets[:-1]]) & valid
    return there
