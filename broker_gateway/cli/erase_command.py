"""`lakebroker erase`: messages with a key or an id out of brokers and lake, and what is left of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from broker_gateway.cli.extras import need
from broker_gateway.cli.gateway_calls import DEFAULT_GATEWAY, NameServers, Reached, TlsCa, TokenFile, Yes
from broker_gateway.cli.output import confirm, fail, show, warn
from broker_gateway.cli.signals import Signalled, raised_signals
from broker_gateway.cli.units import check_texts
from broker_gateway.runtime.printable import printable
from store.counting import counted
from structured_streaming.extras import LAKE

if TYPE_CHECKING:
    from broker_gateway.cli.gateway_calls import GatewayCalls
    from structured_streaming.erased import Erased
    from structured_streaming.maintenance.erasure import Erasure, Purged
    from structured_streaming.maintenance.erasure_search import ErasureSearch
    from structured_streaming.storage.folder import Folder

_ERASE = """Erases messages of a topic by key, or by message id: nobody receives or reads them any more, and they leave the lake's tables for good.

Meant are the messages of the topic that have one of the keys or ids, and all copies that brokers made of them, in any topic: retries, dead letters, timers, halves of transactions. Clients' traces in RMQ_SYS_TRACE_TOPIC that name their ids go too, as a whole. Without --topic, --id is of any topic.

With --gateway (which may be given several times) or --namesrv, the brokers are told first: from then on they hand the messages out no more, and the reput leaves them out. What a broker's log holds of them goes with its segments; the report says until when. Give every broker of the topic. Without either, no broker is told, and a rebuild of the lake from a log brings back what the log has.

Then the rows leave the tables, with the files that had them, the statistics of such files in the tables' logs, checkpoints with these, and the Iceberg mirror's metadata. Versions of tables before cannot be read any more, or not all of them. Queries that run may fail, and are right when they are made again. The last row of a queue stays in consume_queue, and deliveries stay in delivery_events, without the message's id.

Called again, it goes on where it was stopped, and says what is left. `lakebroker maintain` does the lake's part too.

Examples:

  lakebroker erase --lake ./lake --topic orders --key customer-4711 --namesrv 127.0.0.1:9876

  lakebroker erase --lake ./lake --topic orders --key customer-4711 --dry-run --json

  lakebroker erase --lake s3://bucket/lake --id 01A2B3C4D5E6F7A8B9C0D1E2F3A4B5C6D7 --gateway 127.0.0.1:8081 --yes
"""
_KEYS, _IDS, _RECORDS = 1000, 10_000, 10_000
"""That a gateway takes at a time."""
_CALL_S = 600.0
"""A broker looks through its log."""
_ROUNDS = 4
"""Of search and calls: what brokers find may have copies in the lake, and the other way round."""
_PAGES = 10_000
"""Answers to one request, of 20,000 records each: twice as many as a broker ever erases."""
_MOST_KEPT = 5_000_000
"""Records that brokers name, of some 400 bytes of memory each."""
_LATEST_MS = 253_402_300_799_999
"""The last time that can be shown."""
_Kept = dict[tuple[str, str], dict[int, Any]]
"""By log and offset: what a broker says of an erased record that its log holds."""
_Value = TypeVar("_Value")
NOT_COVERED = (
    "copies of the lake (lakebroker lake copy) and backups",
    "files that others made of the tables, and what readers keep in memory",
    "older versions of files where the object store or the file system keeps them (versioning, snapshots)",
    "parts of uploads that were never finished, which an object store keeps as long as its rules say",
    "temporary folders of a maintenance of an object store's lake that was killed",
    "traces in a topic that clients name themselves (traceTopic)",
)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("erase", help=_ERASE)(erase)


@dataclass(slots=True)
class _Told:
    """What brokers answered."""

    logs: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By the gateway's address: its log."""
    kept: _Kept = field(default_factory=dict)
    new_records: int = 0
    alone: int = 0
    """Records that nobody but a broker names: neither does the lake have their messages, nor does its table `erasures` name them."""
    said: dict[str, set[str]] = field(default_factory=dict)
    """By address: message ids of what it found."""
    sent: dict[str, set[str]] = field(default_factory=dict)
    """By address: message ids that it was asked for, of any topic."""
    traced: dict[str, set[str]] = field(default_factory=dict)
    """By address: message ids whose traces it was asked for."""

    def named(self) -> Erased:
        """The records that brokers named."""
        import numpy as np

        from structured_streaming.erased import Erased

        return Erased({log: np.array(sorted(records), np.int64) for log, records in self.kept.items()})


def erase(
    lake: Annotated[
        str,
        typer.Option(envvar="LAKEBROKER_LAKE", help="Where the tables are: a folder, or s3://bucket/lake"),
    ],
    topic: Annotated[str, typer.Option(help="Topic of the messages")] = "",
    key: Annotated[list[str] | None, typer.Option(help="Key that they have; may be given again")] = None,
    message_id: Annotated[
        list[str] | None, typer.Option("--id", help="Message id; may be given again")
    ] = None,
    gateway: Annotated[
        list[str] | None,
        typer.Option(
            help=f"gRPC address of a broker, such as {DEFAULT_GATEWAY}; may be given again, for every broker of the topic"
        ),
    ] = None,
    namesrv: NameServers = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say which records, rows and files with such rows there are, and change nothing"
        ),
    ] = False,
    yes: Yes = False,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    keys, ids, gateways = key or [], message_id or [], gateway or []
    if not keys and not ids:
        fail("nothing is named: give --key with --topic, or --id", 2)
    if keys and not topic:
        fail(f"--key {keys[0]}: keys are of a topic; give it with --topic", 2)
    check_texts(topic, *keys, *ids)
    if any(not each.strip() for each in (*keys, *ids)):
        fail("an empty --key or --id fits nothing; leave it out", 2)
    if gateways and namesrv:
        fail("--gateway and --namesrv: give one of them", 2)
    need("erase", LAKE)
    from structured_streaming.catalog.names import catalog_schema
    from structured_streaming.errors import LakeError
    from structured_streaming.lake import open_lake

    if catalog_schema(lake) is not None:
        fail(
            f"{lake} is a schema of a catalog, whose files and logs only the catalog may remove: erase in a lake in a folder or an "
            "object store; in a catalog, DELETE the rows by SQL (lakebroker sql --write), then VACUUM each table RETAIN 0 HOURS"
        )
    asked = _Asked(topic, keys, ids)
    reached = [Reached(each, "", token_file, tls_ca) for each in gateways]
    if namesrv:
        reached = [Reached("", namesrv, token_file, tls_ca)]
    try:
        with raised_signals():
            _Command(open_lake(lake), lake, asked, reached, dry_run=dry_run, as_json=as_json).run(yes)
    except LakeError as error:
        fail(str(error))
    except OSError as error:
        fail(f"lake {lake}: {error}")
    except Signalled as stopped:
        fail(f"stopped by {stopped}; call it again, it goes on", stopped.status)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be erased."""

    topic: str
    keys: Sequence[str]
    ids: Sequence[str]

    def __str__(self) -> str:
        named = [f"key {each}" for each in self.keys] + [f"id {each}" for each in self.ids]
        return ", ".join(named[:3]) + (", …" if len(named) > 3 else "")


class _Command:
    """Raises LakeError, OSError; what brokers refuse ends it."""

    def __init__(
        self,
        folder: Folder,
        lake: str,
        asked: _Asked,
        reached: Sequence[Reached],
        *,
        dry_run: bool,
        as_json: bool,
    ) -> None:
        self._folder = folder
        self._lake = lake
        self._asked = asked
        self._reached = reached
        self._dry = dry_run
        self._json = as_json

    def run(self, yes: bool) -> None:
        """All of it."""
        from structured_streaming.commit.erasures_log import Erasures, add_erased
        from structured_streaming.maintenance.erasure import purge, would_purge
        from structured_streaming.maintenance.erasure_search import ErasureSearch
        from structured_streaming.maintenance.maintain import lake_mirror

        search = ErasureSearch(self._folder)
        search.add(self._asked.topic, self._asked.keys, self._asked.ids)
        if not self._dry:
            count = counted(len(search.found.records), "record")
            where = f" and at {', '.join(each.named for each in self._reached)}" if self._reached else ""
            confirm(f"{count} of {self._asked} in {self._lake}{where}", yes, verb="erase", how=" for good")
        # of one call: a broker that comes meanwhile was told nothing before
        self._reached = [one for each in self._reached for one in each.each()]
        told = self._tell(search)
        found, known = search.found.records, Erasures(self._folder).every()
        alone = told.named().without(found).without(known)
        again = found.together(told.named().without(alone))
        told.alone = len(alone)
        if self._dry:
            self._show(search, told, would_purge(self._folder, again))
            return
        search.note()
        add_erased(self._folder, found.without(known), datetime.now(UTC))
        ids = search.found.ids.union(*told.said.values())
        self._show(search, told, purge(self._folder, lake_mirror(self._folder, None), ids, again))

    def _tell(self, search: ErasureSearch) -> _Told:
        """The brokers erase what they have, and what the lake has; the search takes up what they found."""
        from structured_streaming.erased import NOTHING_ERASED

        told, sent = _Told(), NOTHING_ERASED
        for number in range(_ROUNDS):
            fresh = search.found.records.without(sent)
            if (
                number
                and not len(fresh)
                and not any(_unsent(search, told, each) or _untraced(told, each) for each in told.logs)
            ):
                break
            for calls in self._gateways():
                ids = _unsent(search, told, calls.address)
                told.sent.setdefault(calls.address, set()).update(ids)
                for request in [*_by_ids(sorted(ids), ""), *(self._named() if number == 0 else ())]:
                    told.logs[calls.address] = self._call(calls, request, told)
            for calls in self._gateways():
                ids = _untraced(told, calls.address)
                told.traced.setdefault(calls.address, set()).update(ids)
                for request in _of_traces(sorted(ids)):
                    self._call(calls, request, told)
            others = fresh.by_log.keys() - set(told.logs.values())
            for calls in self._gateways():
                # logs that no broker of the call has are told to the first one
                for log in [told.logs[calls.address], *others]:
                    for request in _by_place(log, fresh.of(log).tolist()):
                        self._call(calls, request, told)
                others = set()
            sent = fresh.together(sent).together(self._take(search, told))
        return told

    def _gateways(self) -> Iterator[GatewayCalls]:
        for reached in self._reached:
            yield from reached.all()

    def _named(self) -> list[Any]:
        """Requests for what was asked for."""
        from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

        asked = self._asked
        by_keys = [pb.EraseRequest(topic=asked.topic, keys=part) for part in _parts(asked.keys, _KEYS)]
        return by_keys + _by_ids(asked.ids, asked.topic)

    def _call(self, calls: GatewayCalls, request: Any, told: _Told) -> tuple[str, str]:
        """The log of the broker that answered; it is asked until it has looked at all of it."""
        from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

        request.dry_run = self._dry
        said, at = told.said.setdefault(calls.address, set()), dict[tuple[str, str], int]()
        for _ in range(_PAGES):
            answer = calls.admin("Erase", request, pb.EraseResponse, timeout_s=_CALL_S)
            del request.go_on[:]
            for each in (answer, *answer.others):  # of brokers of its host, which did the same
                log = (each.broker, each.log_id)
                its = told.kept.setdefault(log, {})
                its.update({record.physical_offset: record for record in each.records})
                for record in each.records:
                    if min(record.physical_offset, record.size) < 0:
                        fail(
                            f"gateway {calls.address}: an erased record of {record.size} bytes at physical offset {record.physical_offset}, "
                            "which is none"
                        )
                if sum(map(len, told.kept.values())) > _MOST_KEPT:
                    fail(
                        f"brokers name more than {_MOST_KEPT:,} erased records: give fewer keys or ids at a time"
                    )
                said.update(record.message_id for record in each.records if record.message_id)
                told.new_records += each.new_records
                if not each.HasField("stopped_at"):
                    continue
                if each.stopped_at <= at.get(log, -1):
                    fail(
                        f"gateway {calls.address}: its search for records to erase does not go on from {each.stopped_at}"
                    )
                at[log] = each.stopped_at
                request.go_on.add(broker=each.broker, log_id=each.log_id, physical_offset=each.stopped_at)
            if not request.go_on:
                return answer.broker, answer.log_id
        fail(
            f"gateway {calls.address}: its search for records to erase has no end: it went on {_PAGES:,} times, to physical offset "
            f"{max(at.values())}"
        )

    def _take(self, search: ErasureSearch, told: _Told) -> Erased:
        """What brokers found; the search takes up what the lake has of it. A broker's word alone removes nothing but traces, whose
        messages the lake may have forgotten: of what the lake has its own search finds what is meant, or it is another message; of what
        it has not come to, its batches bring what the broker's journal says. Raises LakeError."""
        from store.trace_topics import is_trace_topic

        search.add_traces(set[str]().union(*told.said.values()) - search.found.ids)
        named = told.named()
        if len(search.messages_at(named.without(search.found.records))):
            asked = self._asked
            search.add(asked.topic, asked.keys, asked.ids)  # a batch may have come meanwhile
        rows = search.messages_at(named.without(search.found.records))
        if others := [each for each in rows if not is_trace_topic(each["topic"])]:
            self._refuse(others[0], len(others))
        search.take(rows)
        return named

    def _refuse(self, first: dict[str, Any], count: int) -> None:
        fail(
            f"brokers name {counted(count, 'record')} that {'has' if count == 1 else 'have'} none of the keys or ids in the lake, such as "
            f"message {first['message_id']} of topic {first['topic']} at physical offset {first['physical_offset']} of the log "
            f"{first['log_id']} of {first['broker']}: nothing was removed from the lake. Does --gateway or --namesrv name brokers of this "
            "lake? Messages that are meant all the same can be erased with --id"
        )

    def _show(self, search: ErasureSearch, told: _Told, erasure: Erasure) -> None:
        count, ahead = len(search.found.records.together(told.named())), erasure.ahead + told.alone
        tables = [
            {"table": each.table, "rows": each.rows, "files": each.files}
            | ({} if self._dry else _removed(each))  # only a round that changes files looks at these
            for each in erasure.tables
            if not each.is_nothing
        ]
        problems = [problem for each in erasure.tables for problem in each.problems]
        warn(problems)
        if self._json:
            print_json(
                {
                    "dry_run": self._dry,
                    "records": count,
                    "topics": dict(sorted(search.found.topics.items())),
                    "tables": tables,
                    "brokers_told": list(told.logs),
                    "new_at_brokers": told.new_records,
                    "kept_by_brokers": _shown(told.kept),
                    "settled": erasure.settled,
                    "ahead": ahead,
                    "awaiting_fill": erasure.awaiting_fill,
                    "scratch_files": erasure.scratch,
                    "not_covered": list(NOT_COVERED),
                    "problems": problems,
                }
            )
        else:
            would = "would be" if self._dry else "is" if count == 1 else "are"
            typer.echo(f"{counted(count, 'record')} of {self._asked} {would} erased, copies counted")
            if not count:
                typer.echo(
                    "none is known: look whether topic, keys and ids are written as producers write them (`lakebroker message KEY` finds "
                    "them in all topics of a lake)"
                )
            self._say(search, told, tables)
            if ahead:
                typer.echo(
                    f"of {counted(ahead, 'record')} the lake has no message yet: it learns from the brokers' journals that {'it is' if ahead == 1 else 'they are'} erased; a "
                    "batch that was read before may bring rows, which `lakebroker maintain` removes behind the next batch"
                )
            for each_left in erasure.left():
                typer.echo(each_left)
            typer.echo(f"not covered: {'; '.join(NOT_COVERED)}")
        if problems:
            raise typer.Exit(1)

    def _say(self, search: ErasureSearch, told: _Told, tables: Sequence[dict[str, Any]]) -> None:
        """For people: what was found where."""
        if search.found.topics:
            rows = [
                {"topic": topic, "records_in_lake": number}
                for topic, number in sorted(search.found.topics.items())
            ]
            show(rows, ("topic", "records_in_lake"), as_json=False)
        if tables:
            show(tables, tuple(tables[0]), as_json=False)
        elif not self._dry:
            typer.echo("the lake holds nothing of them")
        for each in _shown(told.kept):
            until = each["until"] or "its segments go; when is not known"
            typer.echo(
                printable(
                    f"the log of broker {each['broker']} holds {counted(each['records'], 'record')} of {each['bytes']:,} bytes until "
                    f"{until}"
                )
            )
        if not told.logs:
            typer.echo(
                "no broker was told: give --gateway or --namesrv. A broker still hands out what its log has, and a lake made anew from "
                "a log has it again"
            )


def _removed(table: Purged) -> dict[str, int]:
    """What a round did to a table's files."""
    return {
        "removed_files": table.removed.files,
        "removed_bytes": table.removed.bytes,
        "log_files": table.log_files,
        "waiting_files": table.waits,
    }


def print_json(value: dict[str, Any]) -> None:
    """One object."""
    typer.echo(json.dumps(value))


def _unsent(search: ErasureSearch, told: _Told, address: str) -> set[str]:
    """Ids that a broker was not asked for: of what the lake has, and of what it found itself, which may have further copies there. What
    it says is no reason to erase messages at others."""
    return (search.found.ids | told.said.get(address, set())) - told.sent.get(address, set())


def _untraced(told: _Told, address: str) -> set[str]:
    """Ids that others said, and whose traces a broker was not asked for."""
    others = set[str]().union(*(ids for each, ids in told.said.items() if each != address))
    return others - told.sent.get(address, set()) - told.traced.get(address, set())


def _parts(values: Sequence[_Value], most: int) -> Iterator[Sequence[_Value]]:
    for begin in range(0, len(values), most):
        yield values[begin : begin + most]


def _by_ids(ids: Sequence[str], topic: str) -> list[Any]:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    return [pb.EraseRequest(topic=topic, message_ids=part) for part in _parts(ids, _IDS)]


def _of_traces(ids: Sequence[str]) -> list[Any]:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    return [pb.EraseRequest(traced_ids=part) for part in _parts(ids, _IDS)]


def _by_place(log: tuple[str, str], offsets: Sequence[int]) -> list[Any]:
    """Requests with records that the lake has of a log."""
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    broker, log_id = log
    return [
        pb.EraseRequest(records=[pb.LogRecords(broker=broker, log_id=log_id, physical_offset=part)])
        for part in _parts(offsets, _RECORDS)
    ]


def _shown(kept: _Kept) -> list[dict[str, Any]]:
    """What each broker's log still holds, and until when, as far as that is known."""
    found = []
    for (broker, log_id), records in kept.items():
        if not records:
            continue
        latest = max(each.kept_until_ms for each in records.values())
        known = all(0 < each.kept_until_ms <= _LATEST_MS for each in records.values())
        found.append(
            {
                "broker": broker,
                "log_id": log_id,
                "records": len(records),
                "bytes": sum(each.size for each in records.values()),
                "until": f"{datetime.fromtimestamp(latest / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
                if known
                else None,
            }
        )
    return found
