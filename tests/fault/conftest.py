"""What `make evidence` asks for: the long versions of the tests of this folder."""

from __future__ import annotations

import os

EVIDENCE = bool(os.environ.get("LAKEBROKER_EVIDENCE"))
