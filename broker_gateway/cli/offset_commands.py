"""`lakebroker offset …` and `lakebroker subscription …`: how far groups are, and what they subscribe to."""

from __future__ import annotations

from datetime import UTC
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
from broker_gateway.cli.output import confirm, fail, show
from broker_gateway.cli.units import moment

_LATEST_S = 253_402_300_799
"""The end of the year 9999: no message is stored then, so a queue goes on at its end."""
_SUBSCRIPTION = ["group", "topic", "expression", "online", "model", "consistent", "updated"]

Group = Annotated[str, typer.Argument(help="The consumer group")]


def register(app: typer.Typer) -> None:
    """Adds the command groups `offset` and `subscription`."""
    settings = {"help_option_names": ["-h", "--help"]}
    offset = typer.Typer(help="How far consumer groups are.", no_args_is_help=True, context_settings=settings)
    offset.command(
        "list",
        help="Lists how far a group is on each queue. Example: lakebroker offset list audit --topic orders",
    )(list_offsets)
    offset.command(
        "reset",
        help="Lets a group go on at a time: with the first message stored then or later. Example: "
        "lakebroker offset reset audit --topic orders --to 2026-11-25T08:00",
    )(reset_offsets)
    subscription = typer.Typer(
        help="What consumer groups subscribe to.", no_args_is_help=True, context_settings=settings
    )
    subscription.command(
        "list",
        help="Lists subscriptions: of connected consumers, and what other groups left. Example: "
        "lakebroker subscription list --topic orders",
    )(list_subscriptions)
    subscription.command(
        "delete",
        help="Forgets how far a group is on a topic; it begins anew when it subscribes again. Example: "
        "lakebroker subscription delete audit orders --yes",
    )(delete_subscription)
    app.add_typer(offset, name="offset")
    app.add_typer(subscription, name="subscription")


def list_offsets(
    group: Group,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", help="Of this topic; may be repeated. None: all that the group has something of"
        ),
    ] = None,
    gateway: Gateway = DEFAULT_GATEWAY,
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    reached = Reached(gateway, namesrv, token_file, tls_ca)
    request = pb.ListOffsetsRequest(group=group, topics=topics or [])
    rows: list[dict[str, Any]] = []
    for calls in reached.all():
        answer = calls.admin("ListOffsets", request, pb.ListOffsetsResponse)
        for each in answer.queues:
            committed = each.committed if each.HasField("committed") else None
            row = {
                "topic": each.topic,
                "queue": each.queue,
                "begin": each.begin,
                "committed": committed if as_json else "never" if committed is None else committed,
                "position": each.position,
                "end": each.end,
                "behind": each.end - (each.begin if committed is None else committed),
                "last_settled_ms": each.settled_ms,
            }
            rows.append(reached.row(calls, row))
    columns = ["topic", "queue", "begin", "committed", "position", "end", "behind", "last_settled_ms"]
    show(rows, reached.columns(*columns), as_json)


def reset_offsets(
    group: Group,
    topic: Annotated[str, typer.Option("--topic", help="The topic")] = "",
    to: Annotated[
        str,
        typer.Option(help="A time, ISO 8601 (UTC where it names no zone), `earliest` or `latest`"),
    ] = "",
    gateway: Gateway = DEFAULT_GATEWAY,
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    if not topic:
        fail("--topic is missing: name the topic", 2)
    if not to:
        fail("--to is missing: give a time such as 2026-11-25T08:00, earliest or latest", 2)
    request = rpc.ResetGroupOffsetRequest(group=pb.Resource(name=group), topic=pb.Resource(name=topic))
    if to in ("earliest", "latest"):
        request.reset_timestamp.FromSeconds(0 if to == "earliest" else _LATEST_S)
    elif (time := moment("--to", to, "earliest", "latest")) is not None:
        request.reset_timestamp.FromDatetime(time)
    reached, rows = Reached(gateway, namesrv, token_file, tls_ca), []
    for calls in reached.all():
        calls.public("ResetGroupOffset", request, rpc.ResetGroupOffsetResponse)
        rows.append(reached.row(calls, {"group": group, "topic": topic, "reset_to": to}))
    show(rows, reached.columns("group", "topic", "reset_to"), as_json)


def list_subscriptions(
    group: Annotated[str, typer.Option("--group", help="Of this group")] = "",
    topic: Annotated[str, typer.Option("--topic", help="To this topic")] = "",
    clients: Annotated[bool, typer.Option("--clients", help="Of each connected consumer")] = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    of_group = pb.Resource(name=group) if group else None
    to_topic = pb.Resource(name=topic) if topic else None
    with connected(gateway, token_file, tls_ca) as calls:
        if clients:
            described = calls.public(
                "DescribeSubscription",
                rpc.DescribeSubscriptionRequest(group=of_group, topic=to_topic),
                rpc.DescribeSubscriptionResponse,
            )
            rows = [
                {
                    "client_id": each.client_info.client_id,
                    "address": each.client_info.egress_ip,
                    **_row(each.subscription_info),
                }
                for each in described.client_subscription_info
            ]
            show(rows, ["client_id", "address", *_SUBSCRIPTION], as_json)
            return
        found = calls.public(
            "ListSubscription",
            rpc.ListSubscriptionRequest(group=of_group, topic=to_topic),
            rpc.ListSubscriptionResponse,
        )
    show([_row(each) for each in found.subscription_info], _SUBSCRIPTION, as_json)


def delete_subscription(
    group: Group,
    topic: Annotated[str, typer.Argument(help="The topic")],
    yes: Yes = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    namesrv: NameServers = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    confirm(f"how far group {group} is on topic {topic}", yes)
    request = rpc.DeleteSubscriptionRequest(group=pb.Resource(name=group), topic=pb.Resource(name=topic))
    reached, rows = Reached(gateway, namesrv, token_file, tls_ca), []
    for calls in reached.all():
        calls.public("DeleteSubscription", request, rpc.DeleteSubscriptionResponse)
        rows.append(reached.row(calls, {"group": group, "topic": topic, "deleted": True}))
    show(rows, reached.columns("group", "topic", "deleted"), as_json)


def _row(info: Any) -> dict[str, Any]:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc

    updated = info.last_update_timestamp
    return {
        "group": _name(info.group),
        "topic": _name(info.topic),
        "expression": info.expression.expression,
        "online": info.online,
        "model": rpc.MessageModel.Name(info.message_model),
        "consistent": info.subscription_consistency,
        "updated": f"{updated.ToDatetime(tzinfo=UTC):%Y-%m-%d %H:%M:%S}" if updated.seconds else "",
    }


def _name(resource: Any) -> str:
    namespace = resource.resource_namespace
    return f"{namespace}%{resource.name}" if namespace else str(resource.name)
