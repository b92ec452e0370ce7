"""What a host cannot give is named before the broker opens a port."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from broker_gateway.app.host_checks import Disk, Log, check_descriptors, check_disks, check_sizes
from broker_gateway.runtime.errors import HostError

GIB = 1 << 30
NEW = Log(0, GIB)
INFINITE = resource.RLIM_INFINITY


def disk(used: int, free: int) -> Disk:
    return Disk(Path("/data/store/commitlog"), used, free)


def test_a_disk_with_room() -> None:
    assert check_disks([disk(GIB, 20 * GIB)], NEW, 90) is None
    assert check_disks([disk(0, 100 << 20), disk(GIB, 20 * GIB)], NEW, 90) is None, "one of several"


def test_a_disk_smaller_than_a_segment() -> None:
    with pytest.raises(HostError, match=r"200 of 200 MiB.*1,024 MiB \(mappedFileSizeCommitLog\)") as error:
        check_disks([disk(0, 200 << 20)], NEW, 90)
    assert error.value.exit_code == 254
    assert "storePathRootDir" in str(error.value)


def test_a_segment_that_fills_the_disk_up_to_where_sends_are_refused() -> None:
    with pytest.raises(HostError, match=r"below 90 % \(diskSpaceWarningLevelRatio\)"):
        check_disks([disk(0, GIB + (50 << 20))], NEW, 90)
    with pytest.raises(HostError, match="diskSpaceWarningLevelRatio"):
        check_disks([disk(950 * GIB, 50 * GIB)], NEW, 90)


def test_a_log_that_is_there_is_served() -> None:
    warning = check_disks([disk(GIB, 10 << 20)], Log(1, GIB), 90)
    assert warning is not None
    assert "no further one can be made" in warning
    assert check_disks([disk(950 * GIB, 50 * GIB)], Log(900, GIB), 90) is None


def test_descriptors() -> None:
    assert check_descriptors(INFINITE, NEW) is None
    assert check_descriptors(1 << 20, Log(1000, GIB)) is None
    warning = check_descriptors(1024, NEW)
    assert warning is not None
    assert "for connections; raise it: LimitNOFILE=" in warning
    for allowed, found in ((64, NEW), (2048, Log(1000, GIB))):
        with pytest.raises(HostError, match=rf"may open {allowed} files.*ulimit -Hn") as error:
            check_descriptors(allowed, found)
        assert error.value.exit_code == 254


def test_sizes() -> None:
    check_sizes(NEW, INFINITE, INFINITE)
    check_sizes(NEW, GIB, 2 * GIB)
    with pytest.raises(HostError, match="LimitFSIZE="):
        check_sizes(NEW, GIB - 1, INFINITE)
    with pytest.raises(HostError, match="LimitAS="):
        check_sizes(Log(10, GIB), INFINITE, 11 * GIB)
