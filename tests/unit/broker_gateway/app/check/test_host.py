"""What limits and the kernel's settings mean for a broker."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import pytest

from broker_gateway.app.check.disk import check_disk
from broker_gateway.app.check.finding import Finding, Verdict, as_at_start
from broker_gateway.app.check.host import (
    Clock,
    Memory,
    check_clock,
    check_locks,
    check_mappings,
    check_memory,
    check_pages,
    clock,
    max_map_count,
    memory,
)
from broker_gateway.app.check.store import check_file_system, file_system
from broker_gateway.app.host_checks import Disk, Log
from broker_gateway.config.gateway import GatewayConfig, load_config
from broker_gateway.config.store_options import StoreOptions
from broker_gateway.runtime.errors import HostError

GIB = 1 << 30
MOUNTS = """22 1 8:1 / / rw - ext4 /dev/root rw
23 22 0:20 / /tmp rw - tmpfs tmpfs rw
24 22 0:21 / /srv/my\\040logs rw - nfs4 server:/logs rw
25 22 0:22 / /box rw - overlay overlay rw
"""
NOW_S = 1_790_000_000.0


def config(**options: str) -> GatewayConfig:
    return load_config(None, options, {})[0]


def verdict(found: Finding | None) -> Verdict | None:
    return found.verdict if found is not None else None


def test_what_the_start_raises_or_warns_of_is_parted_into_value_and_remedy() -> None:
    def raises() -> str:
        raise HostError("it has 3; it needs 4; raise it")

    assert as_at_start("x", "3", raises) == Finding("x", Verdict.FAIL, "it has 3; it needs 4", "raise it")
    assert as_at_start("x", "3", lambda: "few; take more") == Finding("x", Verdict.WARN, "few", "take more")
    assert as_at_start("x", "3", lambda: None) == Finding("x", Verdict.OK, "3")


def test_segments_are_whole_pages() -> None:
    assert verdict(check_pages(Log(0, GIB))) is Verdict.OK
    found = check_pages(Log(0, GIB + 100))
    assert found.verdict is Verdict.WARN
    assert f"multiple of {mmap.PAGESIZE:,}" in found.remedy


def test_mappings_are_as_many_as_segments() -> None:
    assert verdict(check_mappings(65_530, Log(1000, GIB))) is Verdict.OK
    found = check_mappings(65_530, Log(65_000, GIB))
    assert found.verdict is Verdict.WARN
    assert found.remedy == "sysctl -w vm.max_map_count=262144"
    assert max_map_count() > 0


@pytest.mark.parametrize(
    ("allowed", "may_all", "expected"),
    [
        (2 * GIB, False, Verdict.OK),
        (2 * GIB - 1, False, Verdict.WARN),
        (0, True, Verdict.OK),
        (resource.RLIM_INFINITY, False, Verdict.OK),
    ],
)
def test_two_segments_are_locked(allowed: int, may_all: bool, expected: Verdict) -> None:
    found = check_locks(True, allowed, may_all, Log(5, GIB))
    assert verdict(found) is expected
    if found is not None and expected is Verdict.WARN:
        assert "LimitMEMLOCK=" in found.remedy
    assert check_locks(False, 0, False, Log(5, GIB)) is None, "where locking is not configured"


def test_memory_is_that_of_the_host_or_of_the_control_group() -> None:
    options = config(lakeQueueIndexMaxBytes=str(GIB))
    assert verdict(check_memory(Memory(4 * GIB, None, False), options, 1)) is Verdict.OK
    assert verdict(check_memory(Memory(4 * GIB, GIB, False), options, 1)) is Verdict.WARN
    assert verdict(check_memory(Memory(4 * GIB, None, False), options, 4)) is Verdict.WARN
    strict = check_memory(Memory(4 * GIB, None, True), options, 1)
    assert strict.verdict is Verdict.WARN
    assert "overcommit_memory" in strict.remedy
    assert memory().available > 0


def test_a_clock_that_is_not_right() -> None:
    good = Clock(NOW_S, True, 3.0)
    assert verdict(check_clock(good, NOW_S - 5)) is Verdict.OK
    assert "behind" not in check_clock(good, None).value
    found = check_clock(good, NOW_S + 60)
    assert found.verdict is Verdict.WARN
    assert "60 s after that" in found.value
    assert "not synchronized" in check_clock(Clock(NOW_S, False, 0.0), None).value
    hidden = check_clock(Clock(NOW_S, None, 0.0), None)
    assert verdict(hidden) is Verdict.OK, "so it is in each start under the unit, which hides the clock"
    assert "not told" in hidden.value
    assert check_clock(Clock(5.0, True, 0.0), None).value == "1970-01-01 00:00:05 UTC is not now"
    assert clock().now_s > 1_700_000_000


def test_the_file_system_of_the_longest_mount_point_counts() -> None:
    assert file_system(Path("/var/lib"), MOUNTS) == "ext4"
    assert file_system(Path("/tmp/x"), MOUNTS) == "tmpfs"
    assert file_system(Path("/tmpx"), MOUNTS) == "ext4"
    assert file_system(Path("/srv/my logs/a"), MOUNTS) == "nfs4"
    covered = MOUNTS + "26 22 8:2 / /tmp rw - xfs /dev/b rw\n"
    assert file_system(Path("/tmp/x"), covered) == "xfs"


def test_file_systems_to_be_warned_of() -> None:
    for folder, word in (("/tmp", "in memory"), ("/box", "container")):
        found = check_file_system(
            [Path(folder)], "1 1 8:1 / / rw - " + {"/tmp": "tmpfs", "/box": "overlay"}[folder] + " x rw"
        )
        assert found.verdict is Verdict.WARN
        assert word in found.value
    assert check_file_system([Path("/")], "1 1 8:1 / / rw - xfs x rw") == Finding(
        "file system", Verdict.OK, "xfs"
    )


def test_brokers_that_fit_a_disk_alone_and_not_together() -> None:
    disk, options = Disk(Path("/data"), 0, 10 * GIB), StoreOptions()
    new = Log(0, 4 * GIB)
    assert verdict(check_disk(disk, [Log(0, GIB)], options)) is Verdict.OK
    together = check_disk(disk, [new, new, new], options)
    assert together.verdict is Verdict.FAIL
    assert "12,288 MiB together" in together.value
    assert "two" not in together.remedy


def test_a_disk_that_is_nearly_full() -> None:
    options = StoreOptions()
    full = check_disk(Disk(Path("/data"), 80 * GIB, 20 * GIB), [Log(50, GIB)], options)
    assert full.verdict is Verdict.WARN
    assert "diskMaxUsedSpaceRatio (75 %)" in full.value
    small = check_disk(Disk(Path("/data"), GIB, GIB), [Log(1, GIB)], options)
    assert small.verdict is Verdict.WARN
    assert "take 2,048 MiB" in small.value
