"""`lakebroker topic …`, `lakebroker group …` and `lakebroker tasks`."""

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
    NameServers,
    Reached,
    TlsCa,
    TokenFile,
    Yes,
    connected,
)
from broker_gateway.cli.output import confirm, fail, show, show_facts, warn

_TYPES_HELP = (
    "Accepted message type, may be repeated: NORMAL, FIFO, DELAY, TRANSACTION, LITE or PRIORITY; MIXED: all; "
    "none: as it is, or all"
)


Queues = Annotated[
    int,
    typer.Option(help="Number of queues, never fewer than there are; 0: as it is, or the broker's default"),
]
Types = Annotated[list[str] | None, typer.Option("--type", help=_TYPES_HELP)]
RetryMax = Annotated[int | None, typer.Option(help="Deliveries after the first before the dead-letter topic")]
Fifo = Annotated[bool | None, typer.Option("--fifo/--no-fifo", help="Deliver in order")]
Configuration = Annotated[
    str,
    typer.Option(
        metavar="JSON",
        help="Further fields of the configuration, as groupRetryPolicy; attributes are changes, +name or -name",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command groups `topic` and `group`."""
    settings = {"help_option_names": ["-h", "--help"]}
    topic = typer.Typer(help="Topics of a broker.", no_args_is_help=True, context_settings=settings)
    topic.command(
        "create",
        help="Makes a topic, or changes what is named of it. Example: lakebroker topic create orders --queues 16",
    )(create_topic)
    topic.command("list", help="Lists topics.")(list_topics)
    topic.command(
        "describe",
        help="Shows a topic, what the broker's log has of it, and where it is. Example: lakebroker topic describe orders",
    )(describe_topic)
    topic.command(
        "update",
        help="Changes what is named of a topic that there is. Example: lakebroker topic update orders --queues 32",
    )(update_topic)
    topic.command(
        "delete",
        help="Deletes a topic, and how far every group is on it. Example: lakebroker topic delete orders --yes",
    )(delete_topic)
    group = typer.Typer(help="Consumer groups of a broker.", no_args_is_help=True, context_settings=settings)
    group.command(
        "create",
        help="Makes a group, or changes what is named of it. Example: lakebroker group create audit --retry-max 3",
    )(create_group)
    group.command("list", help="Lists consumer groups.")(list_groups)
    group.command(
        "describe",
        help="Shows a group and what it has before it on each topic. Example: lakebroker group describe audit",
    )(describe_group)
    group.command(
        "update",
        help="Changes what is named of a group that there is. Example: lakebroker group update audit --fifo",
    )(update_group)
    group.command(
        "delete",
        help="Deletes a group, and how far it is on every topic. Example: lakebroker group delete audit --yes",
    )(delete_group)
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
        rows = [row | {"last_run": when(row["last_run_ms"], time.time())} for row in rows]
    show(rows, columns, as_json)


def when(ms: int, now_s: float) -> str:
    """A time as a person reads it, and how long ago that was; 0: never."""
    if ms == 0:
        return "never"
    at = datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{at}, {max(now_s - ms / 1000, 0):,.0f} s ago"


def create_topic(
    name: str,
    queues: Queues = 0,
    types: Types = None,
    gateway: Gateway = DEFAULT_GATEWAY,
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    _put_topic(name, queues, types, False, Reached(gateway, namesrv, token_file, tls_ca), as_json)


def update_topic(
    name: str,
    queues: Queues = 0,
    types: Types = None,
    gateway: Gateway = DEFAULT_GATEWAY,
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    _put_topic(name, queues, types, True, Reached(gateway, namesrv, token_file, tls_ca), as_json)


def _put_topic(
    name: str, queues: int, types: list[str] | None, update_only: bool, reached: Reached, as_json: bool
) -> None:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    topic = pb.Topic(name=name, queues=queues, accept_message_types=types or [])
    request = pb.PutTopicRequest(topic=topic, update_only=update_only)
    rows = []
    for calls in reached.all():
        answer = calls.admin("PutTopic", request, pb.PutTopicResponse)
        warn(answer.warnings)
        row = _topic_row(answer.topic) | {"created": answer.created, "changed": answer.changed}
        rows.append(reached.row(calls, row))
    show(rows, reached.columns("name", "queues", "types", "created", "changed"), as_json)


def describe_topic(
    name: str,
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    topic = pb.Resource(name=name)
    with connected(gateway, token_file, tls_ca) as calls:
        status = calls.public(
            "DescribeTopicStatus",
            rpc.DescribeTopicStatusRequest(topic=topic),
            rpc.DescribeTopicStatusResponse,
        )
        routed = calls.public(
            "GetTopicRoute", rpc.GetTopicRouteRequest(topic=topic), rpc.GetTopicRouteResponse
        )
    route = json.loads(routed.topic_route_data)
    addresses = {each["brokerName"]: each["brokerAddrs"].get("0", "") for each in route["brokerDatas"]}
    facts = {
        "name": name,
        **dict(sorted(status.tags.items())),
        "created_ms": status.create_timestamp.ToMilliseconds(),
        "brokers": [
            {
                "broker": each["brokerName"],
                "gateway": addresses.get(each["brokerName"], ""),
                "read_queues": each["readQueueNums"],
                "write_queues": each["writeQueueNums"],
            }
            for each in route["queueDatas"]
        ],
    }
    show_facts(facts, as_json)


def delete_topic(
    name: str,
    yes: Yes = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    confirm(f"topic {name} and how far every group is on it", yes)
    reached, rows = Reached(gateway, namesrv, token_file, tls_ca), []
    for calls in reached.all():
        answer = calls.admin("DeleteTopic", pb.DeleteTopicRequest(name=name), pb.DeleteTopicResponse)
        rows.append(reached.row(calls, {"name": name, "deleted": answer.deleted}))
    if not any(row["deleted"] for row in rows):
        fail(f"there is no topic {name!r} at {reached.named}; `lakebroker topic list` names them")
    show(rows, reached.columns("name", "deleted"), as_json)


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
    retry_max: RetryMax = None,
    fifo: Fifo = None,
    configuration: Configuration = "",
    gateway: Gateway = DEFAULT_GATEWAY,
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    reached = Reached(gateway, namesrv, token_file, tls_ca)
    _put_group(_asked_group(name, retry_max, fifo, configuration), False, reached, as_json)


def update_group(
    name: str,
    retry_max: RetryMax = None,
    fifo: Fifo = None,
    configuration: Configuration = "",
    gateway: Gateway = DEFAULT_GATEWAY,
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    reached = Reached(gateway, namesrv, token_file, tls_ca)
    _put_group(_asked_group(name, retry_max, fifo, configuration), True, reached, as_json)


def _asked_group(name: str, retry_max: int | None, fifo: bool | None, configuration: str) -> Any:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    group = pb.Group(name=name, configuration=configuration)
    if fifo is not None:
        group.fifo = fifo
    if retry_max is not None:
        group.retry_max_times = retry_max
    return group


def _put_group(group: Any, update_only: bool, reached: Reached, as_json: bool) -> None:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    request = pb.PutGroupRequest(group=group, update_only=update_only)
    rows = []
    for calls in reached.all():
        answer = calls.admin("PutGroup", request, pb.PutGroupResponse)
        row = _group_row(answer.group) | {"created": answer.created, "changed": answer.changed}
        rows.append(reached.row(calls, row))
    show(rows, reached.columns("name", "retry_max_times", "fifo", "created", "changed"), as_json)


def describe_group(
    name: str,
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as own

    group = pb.Resource(name=name)
    with connected(gateway, token_file, tls_ca) as calls:
        listed = calls.admin("ListGroups", own.ListGroupsRequest(), own.ListGroupsResponse)
        known = next((each for each in listed.groups if each.name == name), None)
        if known is None:
            fail(
                f"there is no consumer group {name!r} at {calls.address}; `lakebroker group list` names them"
            )
        found = calls.public(
            "DescribeGroupAccumulation",
            rpc.DescribeGroupAccumulationRequest(group=group),
            rpc.DescribeGroupAccumulationResponse,
        )
        online = calls.public(
            "ListConsumerConnection",
            rpc.ListConsumerConnectionRequest(group=group),
            rpc.ListConsumerConnectionResponse,
        )
    topics = [
        {
            "topic": topic,
            "in_flight": each.inflight_messages,
            "ready": each.ready_messages,
            "behind": each.accumulation,
            "delay_ms": each.deliver_delay_time.ToMilliseconds(),
            "last_settled_ms": each.last_consume_timestamp,
        }
        for topic, each in sorted(found.topic_accumulation.items())
    ]
    facts = {
        **_group_row(known),
        "connected": len(online.client_info),
        "behind": found.accumulation.accumulation,
        "topics": topics,
    }
    show_facts(facts, as_json)


def delete_group(
    name: str,
    keep_offsets: Annotated[
        bool,
        typer.Option("--keep-offsets", help="A group of that name, made again, goes on where this one was"),
    ] = False,
    yes: Yes = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    confirm(f"consumer group {name}" + ("" if keep_offsets else " and how far it is on every topic"), yes)
    reached, rows = Reached(gateway, namesrv, token_file, tls_ca), []
    request = pb.DeleteGroupRequest(name=name, keep_offsets=keep_offsets)
    for calls in reached.all():
        answer = calls.admin("DeleteGroup", request, pb.DeleteGroupResponse)
        rows.append(reached.row(calls, {"name": name, "deleted": answer.deleted}))
    if not any(row["deleted"] for row in rows):
        fail(f"there is no consumer group {name!r} at {reached.named}; `lakebroker group list` names them")
    show(rows, reached.columns("name", "deleted"), as_json)


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
