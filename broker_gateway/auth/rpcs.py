"""What each RPC of the gRPC port does. A service with an RPC that is not here is not bound."""

from __future__ import annotations

from broker_gateway.auth.rules import Action, Kind, Rule

_MESSAGING = "/apache.rocketmq.v2.MessagingService/"
_ADMIN = "/lakebroker.admin.v1.AdminService/"
_PUBLIC_ADMIN = "/apache.rocketmq.v2.Admin/"
_LOG = "/lakebroker.log.v1.LogService/"


def _consumes(topic: str) -> Rule:
    """What a consumer does: of its group, and of the topic that a field names."""
    return Rule(Action.SUB, Kind.GROUP, "group", also=(Rule(Action.SUB, Kind.TOPIC, topic),))


RPCS = {
    _MESSAGING + "QueryRoute": Rule(Action.GET, Kind.TOPIC, "topic"),
    _MESSAGING + "QueryAssignment": Rule(Action.GET, Kind.TOPIC, "topic"),
    _MESSAGING + "Heartbeat": Rule(Action.SUB, Kind.GROUP, "group"),
    _MESSAGING + "SendMessage": Rule(Action.PUB, Kind.TOPIC, "messages.topic"),
    _MESSAGING + "ReceiveMessage": _consumes("message_queue.topic"),
    _MESSAGING + "AckMessage": _consumes("topic"),
    _MESSAGING + "ForwardMessageToDeadLetterQueue": _consumes("topic"),
    _MESSAGING + "PullMessage": _consumes("message_queue.topic"),
    _MESSAGING + "UpdateOffset": _consumes("message_queue.topic"),
    _MESSAGING + "GetOffset": Rule(
        Action.GET, Kind.GROUP, "group", also=(Rule(Action.GET, Kind.TOPIC, "message_queue.topic"),)
    ),
    _MESSAGING + "QueryOffset": Rule(Action.GET, Kind.TOPIC, "message_queue.topic"),
    _MESSAGING + "EndTransaction": Rule(Action.PUB, Kind.TOPIC, "topic"),
    _MESSAGING + "Telemetry": Rule(Action.GET, Kind.CLUSTER),
    _MESSAGING + "NotifyClientTermination": Rule(Action.SUB, Kind.GROUP, "group"),
    _MESSAGING + "ChangeInvisibleDuration": _consumes("topic"),
    _MESSAGING + "RecallMessage": Rule(Action.PUB, Kind.TOPIC, "topic"),
    _MESSAGING + "SyncLiteSubscription": Rule(Action.SUB, Kind.GROUP, "group"),
    _PUBLIC_ADMIN + "ChangeLogLevel": Rule(Action.UPDATE, Kind.CLUSTER, operators=True),
    _PUBLIC_ADMIN + "DescribeTopicStatus": Rule(Action.GET, Kind.TOPIC, "topic", operators=True),
    _PUBLIC_ADMIN + "ListSubscription": Rule(Action.LIST, Kind.GROUP, "group", operators=True),
    _PUBLIC_ADMIN + "DescribeSubscription": Rule(Action.LIST, Kind.GROUP, "group", operators=True),
    _PUBLIC_ADMIN + "DeleteSubscription": Rule(
        Action.DELETE, Kind.GROUP, "group", operators=True, also=(Rule(Action.GET, Kind.TOPIC, "topic"),)
    ),
    _PUBLIC_ADMIN + "DescribeGroupAccumulation": Rule(Action.GET, Kind.GROUP, "group", operators=True),
    _PUBLIC_ADMIN + "ListConsumerConnection": Rule(Action.LIST, Kind.GROUP, "group", operators=True),
    _PUBLIC_ADMIN + "ResetGroupOffset": Rule(
        Action.UPDATE, Kind.GROUP, "group", operators=True, also=(Rule(Action.GET, Kind.TOPIC, "topic"),)
    ),
    _PUBLIC_ADMIN + "QueryMessage": Rule(Action.GET, Kind.TOPIC, "topic", operators=True),
    _PUBLIC_ADMIN + "PrintThreadStackTrace": Rule(Action.GET, Kind.GROUP, "group", operators=True),
    _PUBLIC_ADMIN + "VerifyMessage": Rule(
        Action.UPDATE, Kind.GROUP, "group", operators=True, also=(Rule(Action.GET, Kind.TOPIC, "topic"),)
    ),
    _PUBLIC_ADMIN + "AdminSendMessage": Rule(Action.PUB, Kind.TOPIC, "topic", operators=True),
    _PUBLIC_ADMIN + "GetConsumerRunningInfo": Rule(Action.GET, Kind.GROUP, "group", operators=True),
    _PUBLIC_ADMIN + "GetTopicRoute": Rule(Action.GET, Kind.TOPIC, "topic", operators=True),
    _PUBLIC_ADMIN + "QueryTimeSpan": Rule(Action.GET, Kind.GROUP, "group", operators=True),
    _PUBLIC_ADMIN + "GetProxyRuntimeStats": Rule(Action.GET, Kind.CLUSTER, operators=True),
    _ADMIN + "PutTopic": Rule(Action.CREATE, Kind.TOPIC, "topic.name", operators=True),
    _ADMIN + "DeleteTopic": Rule(Action.DELETE, Kind.TOPIC, "name", operators=True),
    _ADMIN + "ListTopics": Rule(Action.LIST, Kind.TOPIC, operators=True),
    _ADMIN + "PutGroup": Rule(Action.CREATE, Kind.GROUP, "group.name", operators=True),
    _ADMIN + "DeleteGroup": Rule(Action.DELETE, Kind.GROUP, "name", operators=True),
    _ADMIN + "ListGroups": Rule(Action.LIST, Kind.GROUP, operators=True),
    _ADMIN + "ListOffsets": Rule(Action.GET, Kind.GROUP, "group", operators=True),
    _ADMIN + "ListTasks": Rule(Action.LIST, Kind.CLUSTER, operators=True),
    _ADMIN + "DescribeBroker": Rule(Action.GET, Kind.CLUSTER, operators=True),
    _ADMIN + "Erase": Rule(Action.DELETE, Kind.CLUSTER, operators=True),
    _LOG + "DescribeLog": Rule(Action.GET, Kind.LOG, operators=True),
    _LOG + "ReadLog": Rule(Action.GET, Kind.LOG, operators=True),
    _LOG + "SplitLog": Rule(Action.GET, Kind.LOG, operators=True),
    _LOG + "ListErased": Rule(Action.GET, Kind.LOG, operators=True),
    _LOG + "ReportProgress": Rule(Action.UPDATE, Kind.LOG, operators=True),
    "/grpc.health.v1.Health/Check": Rule(Action.GET, Kind.CLUSTER),
    "/grpc.health.v1.Health/List": Rule(Action.GET, Kind.CLUSTER),
    "/grpc.health.v1.Health/Watch": Rule(Action.GET, Kind.CLUSTER),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Rule(Action.GET, Kind.CLUSTER),
}
