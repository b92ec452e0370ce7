"""`lakebroker client …` and `lakebroker broker …`: connected consumers, and a broker at work."""

from __future__ import annotations

from typing import Annotated

import typer

from broker_gateway.cli.gateway_calls import (
    DEFAULT_GATEWAY,
    AsJson,
    Gateway,
    TlsCa,
    TokenFile,
    connected,
)
from broker_gateway.cli.output import fail, lines, show, show_facts

_COLUMNS = ["client_id", "address", "language", "version", "hostname", "model"]
_ASK_S = 15.0

Group = Annotated[str, typer.Argument(help="The consumer group")]
ClientId = Annotated[str, typer.Argument(help="The consumer's client id, as `client list` shows it")]


def register(app: typer.Typer) -> None:
    """Adds the command groups `client` and `broker`."""
    settings = {"help_option_names": ["-h", "--help"]}
    client = typer.Typer(
        help="Connected consumers of a group.", no_args_is_help=True, context_settings=settings
    )
    client.command("list", help="Lists a group's connected consumers. Example: lakebroker client list audit")(
        list_clients
    )
    client.command(
        "describe",
        help="Shows what a consumer subscribes to, and the messages that it has in flight. Example: "
        "lakebroker client describe audit host-1@42",
    )(describe_client)
    client.command(
        "stack",
        help="Has a consumer print the stacks of its threads. Example: lakebroker client stack audit host-1@42",
    )(print_stack)
    client.command(
        "verify",
        help="Has a consumer consume a message once more, beside its usual deliveries. Example: "
        "lakebroker client verify audit host-1@42 --topic orders --id 01AB…",
    )(verify_message)
    broker = typer.Typer(help="A broker at work.", no_args_is_help=True, context_settings=settings)
    broker.command(
        "describe", help="Shows rates and connections of a broker. Example: lakebroker broker describe"
    )(describe_broker)
    broker.command(
        "log-level",
        help="Changes lakeLogLevel while the broker runs. Example: lakebroker broker log-level debug",
    )(change_log_level)
    app.add_typer(client, name="client")
    app.add_typer(broker, name="broker")


def list_clients(
    group: Group,
    topic: Annotated[str, typer.Option("--topic", help="Those that subscribe to this topic")] = "",
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    request = rpc.ListConsumerConnectionRequest(group=pb.Resource(name=group))
    if topic:
        request.topic.name = topic
    with connected(gateway, token_file, tls_ca) as calls:
        answer = calls.public("ListConsumerConnection", request, rpc.ListConsumerConnectionResponse)
    rows = [
        {
            "client_id": each.client_id,
            "address": each.egress_ip,
            "language": each.language,
            "version": each.version,
            "hostname": each.hostname,
            "model": rpc.MessageModel.Name(each.message_model),
        }
        for each in answer.client_info
    ]
    show(rows, _COLUMNS, as_json)


def describe_client(
    group: Group,
    client_id: ClientId,
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    request = rpc.GetConsumerRunningInfoRequest(group=pb.Resource(name=group), client_id=client_id)
    with connected(gateway, token_file, tls_ca) as calls:
        info = calls.public(
            "GetConsumerRunningInfo", request, rpc.GetConsumerRunningInfoResponse
        ).consumer_running_info
    facts = {
        "client_id": client_id,
        **dict(sorted(info.properties.items())),
        "subscriptions": [
            {
                "topic": topic,
                "expression": each.expression,
                "group_receive_tps": info.consume_status_table[topic].receive_tps,
                "group_ok_tps": info.consume_status_table[topic].consume_ok_tps,
            }
            for topic, each in sorted(info.subscriptions.items())
        ],
        "in_flight": [
            {
                "topic": each.message_queue.topic.name,
                "queue": each.message_queue.id,
                "messages": each.process_queue_info.cached_msg_count,
                "first": each.process_queue_info.cached_msg_min_offset,
                "last": each.process_queue_info.cached_msg_max_offset,
                "committed": each.process_queue_info.commit_offset,
            }
            for each in info.message_queue_table
        ],
    }
    show_facts(facts, as_json)


def print_stack(
    group: Group,
    client_id: ClientId,
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    request = rpc.PrintThreadStackTraceRequest(group=pb.Resource(name=group), client_id=client_id)
    with connected(gateway, token_file, tls_ca) as calls:
        answer = calls.public("PrintThreadStackTrace", request, rpc.PrintThreadStackTraceResponse, _ASK_S)
    typer.echo(lines(answer.thread_stack_trace))


def verify_message(
    group: Group,
    client_id: ClientId,
    topic: Annotated[str, typer.Option("--topic", help="The message's topic")] = "",
    message_id: Annotated[str, typer.Option("--id", help="The message's id")] = "",
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    if not topic or not message_id:
        fail("--topic or --id is missing: name the message", 2)
    request = rpc.VerifyMessageRequest(
        group=pb.Resource(name=group),
        client_id=client_id,
        topic=pb.Resource(name=topic),
        message_id=message_id,
    )
    with connected(gateway, token_file, tls_ca) as calls:
        calls.public("VerifyMessage", request, rpc.VerifyMessageResponse, _ASK_S)
    typer.echo(f"{lines(client_id)} consumed {lines(message_id)}")


def describe_broker(
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc

    with connected(gateway, token_file, tls_ca) as calls:
        answer = calls.public(
            "GetProxyRuntimeStats", rpc.GetProxyRuntimeStatsRequest(), rpc.GetProxyRuntimeStatsResponse
        )
    facts = {
        "broker": answer.proxy_name,
        "version": answer.version,
        "in_tps": answer.in_tps,
        "out_tps": answer.out_tps,
        "connections": answer.connections,
        "producers": answer.producers,
        "consumers": answer.consumers,
    }
    show_facts(facts, as_json)


def change_log_level(
    level: Annotated[str, typer.Argument(help="trace, debug, info, warn or error")],
    gateway: Gateway = DEFAULT_GATEWAY,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
) -> None:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc

    names = rpc.ChangeLogLevelRequest.Level.keys()
    if level.upper() not in names:
        fail(f"level {level} is unknown: use {', '.join(names).lower()}", 2)
    request = rpc.ChangeLogLevelRequest(level=level.upper())
    with connected(gateway, token_file, tls_ca) as calls:
        answer = calls.public("ChangeLogLevel", request, rpc.ChangeLogLevelResponse)
    typer.echo(lines(answer.remark))
