"""Consumer groups of RocketMQ's own parts, which every broker shows from its start on.

Source: RocketMQ's `SubscriptionGroupManager.init`; all have a group's default settings. They are no entries of the
catalog: nobody receives with them, they have no retry topic, and the journal does not hold them.
"""

from __future__ import annotations

from broker_gateway.metadata.catalog import Group

SYSTEM_GROUPS = {
    name: Group(name)
    for name in (
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    )
}
