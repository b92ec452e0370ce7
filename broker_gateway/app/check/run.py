"""All checks of one broker, or of several on a host."""

from __future__ import annotations

import datetime
import os
import resource
from collections.abc import Sequence
from pathlib import Path

from broker_gateway.app.check import disk, host, network, store
from broker_gateway.app.check.finding import Finding, as_at_start, fail, ok, warn
from broker_gateway.app.host_checks import Log, check_descriptors, check_sizes, log_of
from broker_gateway.app.supervisor import child_options, refuse_store
from broker_gateway.config.gateway import GatewayConfig, config_of
from broker_gateway.runtime.errors import StartError
from store.counting import counted
from store.log.claim import PROCESSES_FOLDER, holds_store
from store.log.recovery import COMMIT_LOG_FOLDER


def check(
    config: GatewayConfig, warnings: Sequence[str], processes: int = 1, *, offline: bool = False
) -> list[Finding]:
    """Findings in the order of the start; nothing is made, locked or changed. Blocks, a minute at most; `offline` asks neither name
    servers nor the lake, and takes a moment."""
    found = [warn("configuration", text, "leave it out, or mend it") for text in warnings]
    found = found or [ok("configuration", "every option is known and fits")]
    if processes == 1:
        return [
            *found,
            *_of_broker(config),
            *_of_host(config, [config]),
            *_elsewhere(config, [config], offline),
        ]
    try:
        refuse_store(config.store.store_path_root_dir)
        brokers = [_child(config, number) for number in range(processes)]
    except StartError as error:
        return [*found, fail("processes", str(error))]
    for each in brokers:
        name = each.broker.broker_name
        found += [finding._replace(broker=name) for finding in _of_broker(each)]
    return [*found, *_of_host(config, brokers), *_elsewhere(config, brokers, offline)]


def _child(config: GatewayConfig, number: int) -> GatewayConfig:
    folder = config.store.store_path_root_dir / PROCESSES_FOLDER
    given = {name: value for name, value in config.options().items() if value}
    child, _ = config_of({**given, **child_options(config, number, folder)})
    return child


def _of_broker(config: GatewayConfig) -> list[Finding]:
    """What each broker, which is a process, has of its own."""
    log, root = log_of(config), config.store.store_path_root_dir
    found = [store.check_store(config)]
    if store.running(root) is None:
        found += [_open_files(log), *network.check_own_ports(config)]
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    warmed = config.store.warm_maped_file_enable
    locks = host.check_locks(warmed, limit, host.may_lock_all(), log)
    found += [_sizes(log), host.check_mappings(host.max_map_count(), log), *([locks] if locks else [])]
    return found


def _port_file(config: GatewayConfig) -> list[Finding]:
    """A finding where it cannot be written."""
    file = config.lake.lake_port_file
    if file is None or os.access(file.absolute().parent, os.W_OK):
        return []
    value = f"lakePortFile={file} cannot be written"
    return [fail("port file", value, "name a file in a folder to write to")]


def _open_files(log: Log) -> Finding:
    """By the hard limit, to which the start raises the soft one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,} allowed"
    value = f"{allowed}, with {counted(log.segments, 'segment')} in the log"
    return as_at_start("open files", value, lambda: check_descriptors(hard, log))


def _sizes(log: Log) -> Finding:
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    value = f"{log.segments:,} of {log.segment_size >> 20:,} MiB"
    return as_at_start("segments", value, lambda: check_sizes(log, largest, addresses))


def _is_new(root: Path) -> bool:
    """Whether there is no store yet; what cannot be looked at, a finding of its own, is none that is new."""
    try:
        return not holds_store(root)
    except OSError:
        return False


def _of_host(config: GatewayConfig, brokers: Sequence[GatewayConfig]) -> list[Finding]:
    """What the brokers share."""
    folders = [folder for each in brokers for folder in disk.folders_of(each)]
    logs = [folder for each in brokers for folder in _log_folders(each)]
    return [
        *_port_file(config),
        *disk.check_room(brokers),
        store.check_file_system(folders, Path("/proc/self/mountinfo").read_text()),
        host.check_memory(host.memory(), config, len(brokers)),
        host.check_pages(log_of(brokers[0])),
        host.check_clock(host.clock(), host.newest_change(logs)),
        network.check_access(config),
        network.check_certificate(config, datetime.datetime.now(datetime.UTC)),
    ]


def _elsewhere(config: GatewayConfig, brokers: Sequence[GatewayConfig], offline: bool) -> list[Finding]:
    """What other machines say."""
    if offline:
        return []
    is_new = any(_is_new(each.store.store_path_root_dir) for each in brokers)
    names = [each.broker.broker_name for each in brokers]
    lake = network.check_lake(config.lake.lake_location, names, is_new)
    return [*network.check_name_servers(config), *([lake] if lake is not None else [])]


def _log_folders(config: GatewayConfig) -> list[Path]:
    return config.store.log_folders() or [config.store.store_path_root_dir / COMMIT_LOG_FOLDER]
