"""Why options have no effect here, or are refused. Options of one part of the original share a verdict."""

from __future__ import annotations

from broker_gateway.config.catalogue.row import Fate, Verdict


def _accepted(why: str) -> Verdict:
    return Verdict(Fate.ACCEPTED, why)


def _refused(why: str, *allowed: str) -> Verdict:
    return Verdict(Fate.REFUSED, why, allowed)


EFFECTIVE = Verdict(Fate.EFFECTIVE)

THREADS = _accepted("sizes threads or hand-overs between them; one event loop serves all calls")
HOME = _accepted("there is no installation folder to find; the file is the one given with -c")
HA = _accepted("replication to slaves is not built yet")
HA_REFUSED = _refused("replication to slaves is not built yet, and this would promise it")
CONTROLLER = _accepted("controller mode is not built yet")
CONTROLLER_REFUSED = _refused("controller mode is not built yet")
DLEDGER = _accepted("there is no DLedger log")
DLEDGER_REFUSED = _refused("DLedger logs are not built; use the plain commit log")
REGISTRATION = _accepted("name servers and routes of others are looked after in periods of our own")
REGISTRATION_REFUSED = _refused(
    "name servers are not looked up in DNS again and again; name them in namesrvAddr"
)
REMOTING = _accepted("the remoting port serves administration only, within limits of our own")
REMOTING_REFUSED = _refused("the remoting port serves no consumers yet, and this would restrict them")
CLIENT = _accepted("connections to name servers have limits of our own")
CLIENT_REFUSED = _refused("not built for connections to name servers")
BUFFERS = _accepted("buffers are bounded by numbers of our own and by the system's")
PLUGINS_REFUSED = _refused("Java plug-ins of the store cannot be loaded; see docs/extending.md")
OFFSETS = _accepted("offsets are in the journal with the tick that changed them; nothing is written later")
STATIC_REFUSED = _refused("groups that are fixed at start are not built yet")
TRANSACTIONS = _accepted(
    "the end of a transaction is in the log with the tick that brought it, and counted by metrics of our own"
)
STATISTICS = _accepted("counters are the metrics' and the journal's minutes; they have no such settings")
FILTERS = _accepted("there is no consume queue extension, bit map or filter server; left out on purpose")
FLOW_REFUSED = _refused(
    "this kind of flow control is not built; the queue capacities bound what is under way"
)
COLD = _accepted("reads of cold data are treated like any others")
POP = _accepted("messages in flight are kept in the journal and delivered again in place; nothing is revived")
AUTH = _accepted("authentication and authorization of clients are not built yet")
AUTH_REFUSED = _refused("authentication and authorization of clients are not built yet")
DERIVED = _accepted("taken from the broker's name, cluster and store")
EXPORTER = _refused(
    "metrics are fetched by Prometheus; others can be plugged in (docs/extending.md)", "DISABLE", "PROM"
)
EXPORTERS = _accepted("metrics are fetched by Prometheus, all of them")
MANAGER = _refused("topics, groups and offsets are in the journal; no RocksDB", "v1")
STORE_TYPE = _refused("the store is the commit log with indexes in the lake; no RocksDB", "default")
INDEX = _accepted(
    "there are no index files beside the log: a search by key reads the log, and the reput indexes keys in the lake"
)
READ_ONLY_REFUSED = _refused("read-only folders of the log are not built; list all in storePathCommitLog")
CQ = _accepted("there are no consume queue files beside the log: queues are in memory, and in the lake")
COMPACTION = _accepted("compacted topics are not built yet")
TIMER = _accepted(
    "what waits is kept by its exact time in memory and in a file; there is no wheel and no timer log"
)
LOG = _accepted("the log is written, flushed, recovered and deleted in another way")
CRC = _accepted("every record carries its CRC, and it is always verified")
POOL = _accepted("records go to the page cache at once and none are lost with the process")
POOL_FAIL = _accepted("there is no transientStorePool")
LITE_EVENTS = _accepted("every lite topic that got a message is noted for its subscribers; none is left out")
LITE = _accepted("lite topics are always served")
ROCKSDB = _accepted("there is no RocksDB")
ROCKSDB_REFUSED = _refused("there is no RocksDB")
