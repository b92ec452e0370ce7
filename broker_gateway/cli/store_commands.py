"""`lakebroker store`: looks into a store on this machine, a real broker's as well as ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from broker_gateway.cli.extras import need
from broker_gateway.cli.output import fail, warn
from broker_gateway.cli.store_output import described, progress_shown, show_record, show_summary
from broker_gateway.runtime.printable import printable
from store.counting import counted
from structured_streaming.extras import BROKER

if TYPE_CHECKING:
    from store.log_source import FolderLog

Folder = Annotated[Path, typer.Argument(help="Folder of the store (storePathRootDir)", metavar="DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON")]
_INSPECT = """Shows what a store holds, or single records.

Examples:

  lakebroker store inspect /var/lib/lakebroker/store

  lakebroker store inspect /var/lib/lakebroker/store --key order-17 --topic orders

  lakebroker store inspect /var/lib/lakebroker/store --message-id 01A2B3C4D5E6F7 --json
"""
_VERIFY = """Checks every CRC, length and offset of a store; the exit status is 1 when something is wrong.

Example: lakebroker store verify /var/lib/lakebroker/store --json
"""
_REBUILD = """Writes consumequeue/ and index/ from the log, as a RocketMQ broker has them, so that one starts at once on the store; of a store of ours also topics, groups and offsets in config/.

Nothing else may have the store. Use the options when that broker's configuration differs from the defaults. What is in flight becomes check points of POP in the log: RocketMQ's records of which messages a group was given and has not acknowledged. With --offsets-only, messages that were acknowledged before an older one of their queue was are delivered again.

Example: lakebroker store rebuild /var/lib/lakebroker/store
"""
_IMPORT = """Makes a real broker's store ours: topics, groups and offsets of its config/, and what its POP consumers have in flight, go into our journal.

Where both know a topic, a group or an offset, the broker's files are right: import after it ran, not before. Nothing else may have the store.

Example: lakebroker store import /data/rocketmq/store --broker-name broker-a
"""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    store = typer.Typer(help="Look into a store on this machine: ours, or a real RocketMQ broker's.")
    store.command("inspect", help=_INSPECT)(inspect)
    store.command("verify", help=_VERIFY)(verify)
    store.command("rebuild", help=_REBUILD)(rebuild)
    store.command("import", help=_IMPORT)(import_)
    app.add_typer(store, name="store")


def inspect(
    folder: Folder,
    offset: Annotated[int | None, typer.Option(help="Show the record at this physical offset")] = None,
    key: Annotated[str | None, typer.Option(help="Show records with this key")] = None,
    message_id: Annotated[str | None, typer.Option(help="Show records with this message id")] = None,
    topic: Annotated[str | None, typer.Option(help="Only of this topic; with --key or --message-id")] = None,
    limit: Annotated[int, typer.Option(help="Show at most so many records", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    from store.errors import StoreError
    from store.tools.inspect import find_records, record_at

    if sum(each is not None for each in (offset, key, message_id)) > 1:
        fail("--offset, --key and --message-id exclude each other; give one", 2)
    if topic is not None and key is None and message_id is None:
        fail(f"--topic {topic} goes with --key or --message-id; give one of them, or leave it out", 2)
    with _reading(folder) as (log, _):
        if offset is None and key is None and message_id is None:
            show_summary(log, as_json)
            return
        try:
            if offset is not None:
                records = [record_at(log, offset)]
            else:
                with progress_shown("searching") as progress:
                    found = find_records(log, topic=topic, key=key, message_id=message_id, progress=progress)
                    records = [record for record, _ in zip(found, range(limit), strict=False)]
        except StoreError as error:
            fail(str(error))
        rows = [described(record) for record in records]
    if as_json:
        typer.echo(json.dumps(rows))
    elif not rows:
        fail(f"no record with {'key ' + key if key is not None else f'message id {message_id}'} in {folder}")
    else:
        for row in rows:
            show_record(row)


def verify(folder: Folder, as_json: AsJson = False) -> None:
    from store.errors import StoreError
    from store.tools.verify import verify as check

    with _reading(folder) as (log, ours), progress_shown("verifying") as progress:
        try:
            result = check(log, queue_offsets=ours, progress=progress)
            segments = log.reader.segments()
        except StoreError as error:
            fail(str(error))
    if as_json:
        bad = [problem._asdict() for problem in result.bad]
        typer.echo(json.dumps({"records": result.records, "bytes": result.bytes, "bad": bad}))
    else:
        typer.echo(
            f"{counted(result.records, 'record')}, {counted(result.bytes, 'byte')}, "
            f"physical offsets {result.min_offset:,} to {result.max_offset:,}"
        )
        for problem in result.bad:
            name = _segment_of(problem.offset, segments)
            typer.echo(f"{problem.offset} in {name}: {printable(problem.reason)}", err=True)
        count = len(result.bad)
        damaged = f"{counted(count, 'place')} {'is' if count == 1 else 'are'} damaged"
        typer.echo(damaged if count else "all of it checks out")
    if result.bad:
        raise typer.Exit(1)


def _segment_of(offset: int, segments: Sequence[tuple[int, int, Path]]) -> str:
    """The file that a physical offset is in."""
    return next((str(path) for start, size, path in segments if start <= offset < start + size), "no segment")


def rebuild(
    folder: Folder,
    units_per_file: Annotated[
        int, typer.Option(help="mappedFileSizeConsumeQueue of that broker / 20", min=1)
    ] = 300_000,
    index_slots: Annotated[int, typer.Option(help="maxHashSlotNum of that broker", min=1)] = 5_000_000,
    index_entries: Annotated[int, typer.Option(help="maxIndexNum of that broker", min=2)] = 20_000_000,
    enable_multi_dispatch: Annotated[
        bool, typer.Option("--enable-multi-dispatch", help="enableMultiDispatch of that broker")
    ] = False,
    enable_lmq: Annotated[bool, typer.Option("--enable-lmq", help="enableLmq of that broker")] = False,
    offsets_only: Annotated[
        bool,
        typer.Option(
            "--offsets-only", help="No check points: for consumers that pull, or timerWheelEnable=false"
        ),
    ] = False,
    with_erased: Annotated[
        bool,
        typer.Option(
            "--with-erased", help="Also where that broker will deliver records that are erased here"
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    import os
    from dataclasses import asdict

    need("store rebuild", BROKER)
    from broker_gateway.migration.exchange import export_to_rocketmq
    from broker_gateway.migration.rocketmq_files import ConfigFileError
    from store.errors import StoreError
    from store.log.permissions import use
    from store.log.recovery import load_identity, lock_store
    from store.tools.rebuild import rebuild as write

    use(group_read=False)
    config: list[Path] = []
    try:
        if folder.is_dir() and load_identity(folder) is not None:
            config = export_to_rocketmq(folder, offsets_only=offsets_only, with_erased=with_erased)
    except (StoreError, ConfigFileError, OSError) as error:
        fail(str(error))
    with _reading(folder) as (log, _):
        try:
            lock = lock_store(folder)
            try:
                with progress_shown("rebuilding") as progress:
                    done = write(
                        log,
                        folder,
                        units_per_file=units_per_file,
                        slots=index_slots,
                        entries=index_entries,
                        enable_multi_dispatch=enable_multi_dispatch,
                        enable_lmq=enable_lmq,
                        progress=progress,
                    )
            finally:
                os.close(lock)
        except (StoreError, OSError) as error:
            fail(str(error))
    if as_json:
        bad = [problem._asdict() for problem in done.bad]
        typer.echo(json.dumps({**asdict(done), "bad": bad, "config": [str(path) for path in config]}))
    else:
        typer.echo(
            f"{counted(done.units, 'unit')} of {counted(done.queues, 'queue')}, "
            f"{counted(done.index_entries, 'entry', 'entries')} in {counted(done.index_files, 'index file')}"
        )
        if done.multi_dispatch and not enable_multi_dispatch:
            typer.echo(
                f"records that name further queues (INNER_MULTI_DISPATCH): {done.multi_dispatch:,}; these queues were not "
                "written: give --enable-multi-dispatch, and --enable-lmq, if the broker has them on",
                err=True,
            )
        if config:
            typer.echo(f"{', '.join(path.name for path in config)} in {config[0].parent}")
    if done.bad:
        first = done.bad[0]
        warn(
            [
                f"damage in {counted(len(done.bad), 'place')} of the log was passed over, the first at {first.offset}: "
                f"{first.reason}; run lakebroker store verify {folder}"
            ]
        )


def import_(
    folder: Folder,
    broker_name: Annotated[str, typer.Option(help="brokerName, of a store that we do not know")] = "broker-a",
    cluster: Annotated[str, typer.Option(help="brokerClusterName, likewise")] = "DefaultCluster",
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Go on without what was in flight and cannot be read")
    ] = False,
    as_json: AsJson = False,
) -> None:
    need("store import", BROKER)
    from broker_gateway.migration.exchange import import_from_rocketmq
    from broker_gateway.migration.rocketmq_files import ConfigFileError
    from store.errors import StoreError
    from store.log.permissions import use

    _check_folder(folder)
    if not (folder / "commitlog").is_dir():
        _fail_without_log(folder)
    use(group_read=False)
    try:
        taken = import_from_rocketmq(folder, broker_name, cluster, skip_damaged=skip_damaged)
    except (StoreError, ConfigFileError, OSError) as error:
        fail(str(error))
    warn(taken.problems)
    counts = {
        "topics": taken.topics,
        "groups": taken.groups,
        "offsets": taken.offsets,
        "in_flight": taken.in_flight,
        "retries_moved": taken.retries,
        "timers": taken.put_off.timers + taken.put_off.levels,
        "transactions": taken.put_off.halves,
    }
    if as_json:
        typer.echo(json.dumps(counts))
    else:
        told = [
            counted(taken.topics, "topic"),
            counted(taken.groups, "group"),
            counted(taken.offsets, "offset"),
        ]
        later = taken.put_off
        put_off = [f"{later.timers + later.levels:,} delayed", f"{later.halves:,} transactions pending"]
        typer.echo(
            ", ".join([*told, f"{taken.in_flight:,} in flight", f"{taken.retries:,} retries moved", *put_off])
        )


@contextmanager
def _reading(folder: Path) -> Iterator[tuple[FolderLog, bool]]:
    """The log, and whether the store is ours."""
    from store.errors import StoreError
    from store.log.recovery import load_identity
    from store.log_source import FolderLog

    _check_folder(folder)
    try:
        ours = load_identity(folder) is not None
        log = (
            FolderLog(folder, whole=True) if ours else FolderLog(folder, broker="rocketmq", log_id="rocketmq")
        )
    except (StoreError, OSError) as error:
        fail(str(error))
    if not ours and not (folder / "commitlog").is_dir():
        _fail_without_log(folder)
    try:
        yield log, ours
    finally:
        log.close()


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        fail(f"{folder} is not a folder; give the store's (storePathRootDir)")


def _fail_without_log(folder: Path) -> NoReturn:
    """Names the stores in folders of this one, where several brokers run on one host."""
    from store.log.claim import stores_inside

    try:
        inside = ", ".join(map(str, stores_inside(folder)))
    except OSError as error:
        fail(f"{folder} cannot be read: {error.strerror}; give the folder of a store (storePathRootDir)")
    if inside:
        fail(f"{folder} holds no commitlog, but stores are in it; give one of them: {inside}")
    fail(f"{folder} holds no commitlog; give the folder of a store (storePathRootDir)")
