"""A gateway whose disk can be told to fail: `python tests/support/brokers/faulty_gateway.py STORE CONTROL COMMAND...`.

Lines written to the fifo CONTROL, each answered by a file named by its last word, made when it is done:
`cut FOLDER DONE` leaves in FOLDER what a power cut would (`power_cut.py`); `fail DONE` lets the next fdatasync
fail, once, as Linux reports a lost write once.
"""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.machines.power_cut import Disk

_failing = threading.Event()
_done: list[Path] = []


def _obey(control: str, disk: Disk) -> None:
    rng = random.Random(7)
    while True:
        with open(control) as lines:
            for line in lines:
                words = line.split()
                if words[0] == "cut":
                    disk.cut(Path(words[1]), rng, rng.choice((0.0, 0.3, 0.8)))
                    Path(words[-1]).touch()
                else:
                    _done.append(Path(words[-1]))
                    _failing.set()


def main() -> None:
    store, control, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    disk = Disk(store.parent)
    disk.install()
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        if _failing.is_set():
            _failing.clear()
            _done.pop().touch()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    os.fdatasync = fdatasync
    threading.Thread(target=_obey, args=(control, disk), daemon=True).start()
    from broker_gateway.cli.main import app

    app(command[command.index("broker_gateway.cli.main") + 1 :])


if __name__ == "__main__":
    main()
