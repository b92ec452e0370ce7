"""What each request of the remoting ports does: a broker's, and a name server's. One that is not here is not bound."""

from __future__ import annotations

from broker_gateway.auth.rules import Action, Kind, Rule
from broker_gateway.protocol.codes import RequestCode as Code

WHOLE_CONFIGURATION = Rule(Action.GET, Kind.CLUSTER, operators=True)
"""Of GET_BROKER_CONFIG, which tells others less."""
_GET_TOPIC = Rule(Action.GET, Kind.TOPIC, "topic")
BROKER_REQUESTS = {
    Code.UPDATE_AND_CREATE_TOPIC: Rule(Action.CREATE, Kind.TOPIC, "topic", operators=True, logged=True),
    Code.DELETE_TOPIC_IN_BROKER: Rule(Action.DELETE, Kind.TOPIC, "topic", operators=True, logged=True),
    Code.GET_ALL_TOPIC_CONFIG: Rule(Action.LIST, Kind.TOPIC, operators=True),
    Code.GET_TOPIC_STATS_INFO: Rule(Action.GET, Kind.TOPIC, "topic", operators=True),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Rule(Action.LIST, Kind.TOPIC, operators=True),
    Code.GET_TOPIC_CONFIG: Rule(Action.GET, Kind.TOPIC, "topic"),
    Code.GET_MAX_OFFSET: Rule(Action.GET, Kind.TOPIC, "topic"),
    Code.GET_MIN_OFFSET: Rule(Action.GET, Kind.TOPIC, "topic"),
    Code.GET_EARLIEST_MSG_STORETIME: Rule(Action.GET, Kind.TOPIC, "topic"),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: Rule(Action.GET, Kind.TOPIC, "topic"),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: Rule(Action.CREATE, Kind.TOPIC, operators=True, logged=True),
    Code.CLEAN_UNUSED_TOPIC: Rule(Action.DELETE, Kind.TOPIC, operators=True),
    Code.QUERY_CONSUME_QUEUE: Rule(Action.GET, Kind.TOPIC, "topic", operators=True),
    Code.QUERY_CONSUME_TIME_SPAN: Rule(Action.GET, Kind.GROUP, "group", operators=True),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Rule(Action.CREATE, Kind.GROUP, operators=True, logged=True),
    Code.DELETE_SUBSCRIPTIONGROUP: Rule(Action.DELETE, Kind.GROUP, "groupName", operators=True, logged=True),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Rule(Action.LIST, Kind.GROUP, operators=True),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: Rule(Action.GET, Kind.GROUP, "group"),
    Code.GET_CONSUME_STATS: Rule(Action.GET, Kind.GROUP, "consumerGroup", operators=True),
    Code.GET_BROKER_CONSUME_STATS: Rule(Action.GET, Kind.CLUSTER, operators=True),
    Code.GET_ALL_CONSUMER_OFFSET: Rule(Action.LIST, Kind.GROUP, operators=True),
    Code.QUERY_CONSUMER_OFFSET: Rule(Action.GET, Kind.GROUP, "consumerGroup", also=(_GET_TOPIC,)),
    Code.UPDATE_CONSUMER_OFFSET: Rule(
        Action.UPDATE, Kind.GROUP, "consumerGroup", operators=True, also=(_GET_TOPIC,)
    ),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Rule(Action.UPDATE, Kind.GROUP, "group", operators=True, logged=True),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: Rule(Action.GET, Kind.TOPIC, "topic", operators=True),
    Code.QUERY_TOPICS_BY_CONSUMER: Rule(Action.LIST, Kind.GROUP, "group", operators=True),
    Code.GET_CONSUMER_CONNECTION_LIST: Rule(Action.LIST, Kind.GROUP, "consumerGroup", operators=True),
    Code.GET_PRODUCER_CONNECTION_LIST: Rule(Action.LIST, Kind.GROUP, "producerGroup", operators=True),
    Code.GET_CONSUMER_LIST_BY_GROUP: Rule(Action.LIST, Kind.GROUP, "consumerGroup"),
    Code.HEART_BEAT: Rule(Action.SUB, Kind.GROUP),
    Code.UNREGISTER_CLIENT: Rule(Action.SUB, Kind.GROUP, "consumerGroup"),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Rule(
        Action.CREATE, Kind.GROUP, operators=True, logged=True
    ),
    Code.CLONE_GROUP_OFFSET: Rule(
        Action.UPDATE,
        Kind.GROUP,
        "destGroup",
        operators=True,
        logged=True,
        also=(Rule(Action.GET, Kind.GROUP, "srcGroup"),),
    ),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: Rule(Action.GET, Kind.GROUP, "group", operators=True),
    Code.GET_ALL_PRODUCER_INFO: Rule(Action.LIST, Kind.GROUP, operators=True),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Rule(Action.GET, Kind.GROUP, "group", operators=True),
    Code.GET_CONSUMER_RUNNING_INFO: Rule(Action.GET, Kind.GROUP, "consumerGroup", operators=True),
    Code.CONSUME_MESSAGE_DIRECTLY: Rule(Action.SUB, Kind.GROUP, "consumerGroup", operators=True, logged=True),
    Code.GET_BROKER_RUNTIME_INFO: Rule(Action.GET, Kind.CLUSTER, operators=True),
    Code.GET_BROKER_CONFIG: Rule(Action.GET, Kind.CLUSTER),
    Code.UPDATE_BROKER_CONFIG: Rule(Action.UPDATE, Kind.CLUSTER, operators=True, logged=True),
    Code.VIEW_BROKER_STATS_DATA: Rule(Action.GET, Kind.CLUSTER, operators=True),
    Code.DELETE_EXPIRED_COMMITLOG: Rule(Action.DELETE, Kind.CLUSTER, operators=True, logged=True),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: Rule(Action.DELETE, Kind.CLUSTER, operators=True),
    Code.VIEW_MESSAGE_BY_ID: Rule(Action.GET, Kind.TOPIC, operators=True),
    Code.QUERY_MESSAGE: Rule(Action.GET, Kind.TOPIC, "topic", operators=True),
    Code.PULL_MESSAGE: Rule(
        Action.SUB, Kind.GROUP, "consumerGroup", operators=True, also=(Rule(Action.SUB, Kind.TOPIC, "topic"),)
    ),
    Code.GET_BROKER_HA_STATUS: Rule(Action.GET, Kind.CLUSTER, operators=True),
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: Rule(Action.UPDATE, Kind.CLUSTER),
    Code.GET_BROKER_LITE_INFO: Rule(Action.GET, Kind.CLUSTER, operators=True),
    Code.GET_PARENT_TOPIC_INFO: Rule(Action.GET, Kind.TOPIC, "topic", operators=True),
    Code.GET_LITE_TOPIC_INFO: Rule(Action.GET, Kind.TOPIC, "parentTopic", operators=True),
    Code.GET_LITE_CLIENT_INFO: Rule(Action.GET, Kind.GROUP, "group", operators=True),
    Code.GET_LITE_GROUP_INFO: Rule(Action.GET, Kind.GROUP, "group", operators=True),
    Code.TRIGGER_LITE_DISPATCH: Rule(Action.UPDATE, Kind.GROUP, "group", operators=True, logged=True),
    Code.LAKE_SEND_ORDERED: Rule(Action.PUB, Kind.TOPIC, "topic"),
    Code.LAKE_LITE_SUBSCRIPTION: Rule(Action.SUB, Kind.GROUP, "group"),
}

NAME_SERVER_REQUESTS = {
    Code.REGISTER_BROKER: Rule(Action.UPDATE, Kind.CLUSTER),
    Code.UNREGISTER_BROKER: Rule(Action.UPDATE, Kind.CLUSTER),
    Code.BROKER_HEARTBEAT: Rule(Action.UPDATE, Kind.CLUSTER),
    Code.QUERY_DATA_VERSION: Rule(Action.GET, Kind.CLUSTER),
    Code.GET_BROKER_MEMBER_GROUP: Rule(Action.GET, Kind.CLUSTER),
    Code.REGISTER_TOPIC_IN_NAMESRV: Rule(Action.CREATE, Kind.TOPIC, "topic"),
    Code.GET_ROUTEINFO_BY_TOPIC: Rule(Action.GET, Kind.TOPIC, "topic"),
    Code.GET_BROKER_CLUSTER_INFO: Rule(Action.LIST, Kind.CLUSTER),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Rule(Action.LIST, Kind.TOPIC),
    Code.GET_TOPICS_BY_CLUSTER: Rule(Action.LIST, Kind.TOPIC),
    Code.LAKE_TIED_BROKERS: Rule(Action.LIST, Kind.CLUSTER),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: Rule(Action.LIST, Kind.TOPIC),
    Code.GET_UNIT_TOPIC_LIST: Rule(Action.LIST, Kind.TOPIC),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: Rule(Action.LIST, Kind.TOPIC),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Rule(Action.LIST, Kind.TOPIC),
    Code.GET_KV_CONFIG: Rule(Action.GET, Kind.CLUSTER),
    Code.GET_KVLIST_BY_NAMESPACE: Rule(Action.GET, Kind.CLUSTER),
    Code.PUT_KV_CONFIG: Rule(Action.UPDATE, Kind.CLUSTER, operators=True, logged=True),
    Code.DELETE_KV_CONFIG: Rule(Action.DELETE, Kind.CLUSTER, operators=True, logged=True),
    Code.WIPE_WRITE_PERM_OF_BROKER: Rule(Action.UPDATE, Kind.CLUSTER, operators=True, logged=True),
    Code.ADD_WRITE_PERM_OF_BROKER: Rule(Action.UPDATE, Kind.CLUSTER, operators=True, logged=True),
    Code.DELETE_TOPIC_IN_NAMESRV: Rule(Action.DELETE, Kind.TOPIC, "topic", operators=True, logged=True),
    Code.UPDATE_NAMESRV_CONFIG: Rule(Action.UPDATE, Kind.CLUSTER, operators=True, logged=True),
    Code.GET_NAMESRV_CONFIG: Rule(Action.GET, Kind.CLUSTER, operators=True, logged=True),
}
