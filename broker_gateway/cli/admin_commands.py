"""`lakebroker topic …` and `lakebroker group …`: administration through the gateway's Admin service."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from broker_gateway.cli.gateway_calls import (
    DEFAULT_GATEWAY,
    AsJson,
    Gateway,
    TlsCa,
    TokenFile,
    connected,
)
from broker_gateway.cli.output import show, warn

_TYPES_HELP = (
    "Accepted message type, may be repeated: NORMAL, FIFO, DELAY, TRANSACTION, LITE or PRIORITY; MIXED: all; "
    "none: as it is, or all"
)


def register(app: typer.Typer) -> None:
    """Adds the command groups `topic` and `group`."""
    settings = {"help_option_names": ["-h", "--help"]}
    topic = typer.Typer(help="Topics of a broker.", no_args_is_help=True, context_settings=settings)
    topic.command(
        "create",
        help="Makes a topic, or changes what is named of it. Example: lakebroker topic create orders --queues 16",
    )(create_topic)
    topic.command("list", help="Lists topics.")(list_topics)
    group = typer.Typer(help="Consumer groups of a broker.", no_args_is_help=True, context_settings=settings)
    group.command(
        "create",
        help="Makes a group, or changes what is named of it. Example: lakebroker group create audit --retry-max 3",
    )(create_group)
    group.command("list", help="Lists consumer groups.")(list_groups)
    app.add_typer(topic, name="topic")
    app.add_typer(group, name="group")
    app.command("tasks", help="Shows the scheduled tasks of a broker and how each last went.")(list_tasks)


def list_tasks(
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    answer = _call(gateway, token_file, tls_ca, "ListTasks", pb.ListTasksRequest(), pb.ListTasksResponse)
    columns = ["name", "period_ms", "runs", "failures", "last_run_ms", "took_us", "last_error"]
    rows = [{column: getattr(task, column) for column in columns} for task in answer.tasks]
    if not as_json:
        columns[4] = "last_run"
        rows = [row | {"last_run": _when(row["last_run_ms"], time.time())} for row in rows]
    show(rows, columns, as_json)


def _when(ms: int, now_s: float) -> str:
    """A time as a person reads it, and how long ago that was; 0: never."""
    if ms == 0:
        return "never"
    at = datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{at}, {max(now_s - ms / 1000, 0):,.0f} s ago"


def create_topic(
    name: str,
    queues: Annotated[
        int,
        typer.Option(
            help="Number of queues, never fewer than there are; 0: as it is, or the broker's default"
        ),
    ] = 0,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help=_TYPES_HELP),
    ] = None,
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    asked = pb.Topic(name=name, queues=queues, accept_message_types=types or [])
    answer = _call(
        gateway, token_file, tls_ca, "PutTopic", pb.PutTopicRequest(topic=asked), pb.PutTopicResponse
    )
    warn(answer.warnings)
    show(
        [_topic_row(answer.topic) | {"created": answer.created, "changed": answer.changed}],
        ["name", "queues", "types", "created", "changed"],
        as_json,
    )


def list_topics(
    system: Annotated[bool, typer.Option("--system", help="Retry and dead-letter topics too")] = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    request = pb.ListTopicsRequest(include_system=system)
    answer = _call(gateway, token_file, tls_ca, "ListTopics", request, pb.ListTopicsResponse)
    show([_topic_row(topic) for topic in answer.topics], ["name", "queues", "types"], as_json)


def create_group(
    name: str,
    retry_max: Annotated[
        int | None, typer.Option(help="Deliveries after the first before the dead-letter topic")
    ] = None,
    fifo: Annotated[bool | None, typer.Option("--fifo/--no-fifo", help="Deliver in order")] = None,
    configuration: Annotated[
        str,
        typer.Option(
            metavar="JSON",
            help="Further fields of the configuration, as groupRetryPolicy; attributes are changes, +name or -name",
        ),
    ] = "",
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    asked = pb.Group(name=name, configuration=configuration)
    if fifo is not None:
        asked.fifo = fifo
    if retry_max is not None:
        asked.retry_max_times = retry_max
    answer = _call(
        gateway, token_file, tls_ca, "PutGroup", pb.PutGroupRequest(group=asked), pb.PutGroupResponse
    )
    show(
        [_group_row(answer.group) | {"created": answer.created, "changed": answer.changed}],
        ["name", "retry_max_times", "fifo", "created", "changed"],
        as_json,
    )


def list_groups(
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    answer = _call(gateway, token_file, tls_ca, "ListGroups", pb.ListGroupsRequest(), pb.ListGroupsResponse)
    show([_group_row(group) for group in answer.groups], ["name", "retry_max_times", "fifo"], as_json)


def _topic_row(topic: Any) -> dict[str, Any]:
    return {
        "name": topic.name,
        "queues": topic.queues,
        "types": ",".join(topic.accept_message_types) or "all",
        "configuration": _configuration(topic.configuration),
    }


def _group_row(group: Any) -> dict[str, Any]:
    return {
        "name": group.name,
        "retry_max_times": group.retry_max_times,
        "fifo": group.fifo,
        "configuration": _configuration(group.configuration),
    }


def _configuration(text: str) -> Any:
    """What a gateway says in JSON; the text itself when it is none."""
    try:
        return json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return text


def _call(
    gateway: str, token_file: Path | None, tls_ca: Path | None, method: str, request: Any, response_type: Any
) -> Any:
    with connected(gateway, token_file, tls_ca) as calls:
        return calls.admin(method, request, response_type)
