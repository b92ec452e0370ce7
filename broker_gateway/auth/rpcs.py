"""What each RPC of the gRPC port does. A service with an RPC that is not here is not bound."""

from __future__ import annotations

from broker_gateway.auth.rules import Action, Kind, Rule

_MESSAGING = "/apache.rocketmq.v2.MessagingService/"
_ADMIN = "/lakebroker.admin.v1.AdminService/"
_LOG = "/lakebroker.log.v1.LogService/"
RPCS = {
    _MESSAGING + "QueryRoute": Rule(Action.GET, Kind.TOPIC),
    _MESSAGING + "QueryAssignment": Rule(Action.GET, Kind.TOPIC),
    _MESSAGING + "Heartbeat": Rule(Action.GET, Kind.CLUSTER),
    _MESSAGING + "SendMessage": Rule(Action.PUB, Kind.TOPIC),
    _MESSAGING + "ReceiveMessage": Rule(Action.SUB, Kind.GROUP),
    _MESSAGING + "AckMessage": Rule(Action.SUB, Kind.GROUP),
    _MESSAGING + "ForwardMessageToDeadLetterQueue": Rule(Action.SUB, Kind.GROUP),
    _MESSAGING + "PullMessage": Rule(Action.SUB, Kind.GROUP),
    _MESSAGING + "UpdateOffset": Rule(Action.SUB, Kind.GROUP),
    _MESSAGING + "GetOffset": Rule(Action.GET, Kind.GROUP),
    _MESSAGING + "QueryOffset": Rule(Action.GET, Kind.TOPIC),
    _MESSAGING + "EndTransaction": Rule(Action.PUB, Kind.TOPIC),
    _MESSAGING + "Telemetry": Rule(Action.GET, Kind.CLUSTER),
    _MESSAGING + "NotifyClientTermination": Rule(Action.GET, Kind.CLUSTER),
    _MESSAGING + "ChangeInvisibleDuration": Rule(Action.SUB, Kind.GROUP),
    _MESSAGING + "RecallMessage": Rule(Action.PUB, Kind.TOPIC),
    _MESSAGING + "SyncLiteSubscription": Rule(Action.SUB, Kind.GROUP),
    _ADMIN + "PutTopic": Rule(Action.UPDATE, Kind.TOPIC, owners=True),
    _ADMIN + "ListTopics": Rule(Action.LIST, Kind.TOPIC, owners=True),
    _ADMIN + "PutGroup": Rule(Action.UPDATE, Kind.GROUP, owners=True),
    _ADMIN + "ListGroups": Rule(Action.LIST, Kind.GROUP, owners=True),
    _ADMIN + "ListTasks": Rule(Action.LIST, Kind.CLUSTER, owners=True),
    _LOG + "DescribeLog": Rule(Action.GET, Kind.LOG, owners=True),
    _LOG + "ReadLog": Rule(Action.GET, Kind.LOG, owners=True),
    _LOG + "SplitLog": Rule(Action.GET, Kind.LOG, owners=True),
    _LOG + "ReportProgress": Rule(Action.UPDATE, Kind.LOG, owners=True),
    "/grpc.health.v1.Health/Check": Rule(Action.GET, Kind.CLUSTER),
    "/grpc.health.v1.Health/List": Rule(Action.GET, Kind.CLUSTER),
    "/grpc.health.v1.Health/Watch": Rule(Action.GET, Kind.CLUSTER),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Rule(Action.GET, Kind.CLUSTER),
}
