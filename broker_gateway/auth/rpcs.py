"""What each RPC of the gRPC port does. A service with an RPC that is not here is not bound."""

from __future__ import annotations

from broker_gateway.auth.rules import Action, Kind, Rule

_MESSAGING = "/apache.rocketmq.v2.MessagingService/"
_ADMIN = "/lakebroker.admin.v1.AdminService/"
_LOG = "/lakebroker.log.v1.LogService/"
RPCS = {
    _MESSAGING + "QueryRoute": Rule(Action.GET, Kind.TOPIC, "topic.name"),
    _MESSAGING + "QueryAssignment": Rule(Action.GET, Kind.TOPIC, "topic.name"),
    _MESSAGING + "Heartbeat": Rule(Action.SUB, Kind.GROUP, "group.name"),
    _MESSAGING + "SendMessage": Rule(Action.PUB, Kind.TOPIC, "messages.topic.name"),
    _MESSAGING + "ReceiveMessage": Rule(Action.SUB, Kind.GROUP, "group.name"),
    _MESSAGING + "AckMessage": Rule(Action.SUB, Kind.GROUP, "group.name"),
    _MESSAGING + "ForwardMessageToDeadLetterQueue": Rule(Action.SUB, Kind.GROUP, "group.name"),
    _MESSAGING + "PullMessage": Rule(Action.SUB, Kind.GROUP, "group.name"),
    _MESSAGING + "UpdateOffset": Rule(Action.SUB, Kind.GROUP, "group.name"),
    _MESSAGING + "GetOffset": Rule(Action.GET, Kind.GROUP, "group.name"),
    _MESSAGING + "QueryOffset": Rule(Action.GET, Kind.TOPIC, "message_queue.topic.name"),
    _MESSAGING + "EndTransaction": Rule(Action.PUB, Kind.TOPIC, "topic.name"),
    _MESSAGING + "Telemetry": Rule(Action.GET, Kind.CLUSTER),
    _MESSAGING + "NotifyClientTermination": Rule(Action.SUB, Kind.GROUP, "group.name"),
    _MESSAGING + "ChangeInvisibleDuration": Rule(Action.SUB, Kind.GROUP, "group.name"),
    _MESSAGING + "RecallMessage": Rule(Action.PUB, Kind.TOPIC, "topic.name"),
    _MESSAGING + "SyncLiteSubscription": Rule(Action.SUB, Kind.GROUP, "group.name"),
    _ADMIN + "PutTopic": Rule(Action.CREATE, Kind.TOPIC, "topic.name", operators=True),
    _ADMIN + "ListTopics": Rule(Action.LIST, Kind.TOPIC, operators=True),
    _ADMIN + "PutGroup": Rule(Action.CREATE, Kind.GROUP, "group.name", operators=True),
    _ADMIN + "ListGroups": Rule(Action.LIST, Kind.GROUP, operators=True),
    _ADMIN + "ListTasks": Rule(Action.LIST, Kind.CLUSTER, operators=True),
    _LOG + "DescribeLog": Rule(Action.GET, Kind.LOG, operators=True),
    _LOG + "ReadLog": Rule(Action.GET, Kind.LOG, operators=True),
    _LOG + "SplitLog": Rule(Action.GET, Kind.LOG, operators=True),
    _LOG + "ReportProgress": Rule(Action.UPDATE, Kind.LOG, operators=True),
    "/grpc.health.v1.Health/Check": Rule(Action.GET, Kind.CLUSTER),
    "/grpc.health.v1.Health/List": Rule(Action.GET, Kind.CLUSTER),
    "/grpc.health.v1.Health/Watch": Rule(Action.GET, Kind.CLUSTER),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Rule(Action.GET, Kind.CLUSTER),
}
