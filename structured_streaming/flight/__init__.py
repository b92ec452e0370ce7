"""The lake over Arrow Flight SQL: ADBC, JDBC and BI tools ask the embedded engine, and only read.

In: gRPC calls of a client. Out: Arrow batches of one statement, each pinned to one instant of the lake.

| file | what it does |
|---|---|
| `server.py` | the port: addresses, TLS, sizes, connections, start and stop |
| `access.py` | who may call: the token, before anything of a request is read |
| `service.py` | the calls of Flight, one method each |
| `failures.py` | what went wrong as a gRPC status |
| `running.py` | statements that run: their time, their clients, their end |
| `prepared.py` | prepared statements and their parameters, bounded |
| `parameters.py` | which types a statement's parameters have, as far as it tells |
| `tickets.py` | tickets: signed, so that none has to be kept |
| `arrow_messages.py` | Arrow batches to and from messages of Flight |
| `metadata.py`, `sql_info.py` | what tools ask about tables, keys, types and the server |

gRPC is grpcio's. The server in pyarrow takes messages of any size before it asks who sends them (a call without the token
took 750 MiB of memory with 300 MiB sent), and has no bound for connections, threads or a client that does not read.

| bound | answer when it is reached |
|---|---|
| a request: 2 MiB | RESOURCE_EXHAUSTED, of gRPC itself |
| connections: 128 | another one is closed at once; one without calls after 5 minutes |
| calls at a time: 64 | RESOURCE_EXHAUSTED, of gRPC itself |
| statements at a time, and plans beside them (`--statements`) | wait 30 s for another to end, then RESOURCE_EXHAUSTED |
| a call's one request, to its last byte: 20 s | CANCELLED |
| time of a statement, to its last row (`--timeout`) | DEADLINE_EXCEEDED; of another call: a minute |
| text of a statement: 256 KiB | INVALID_ARGUMENT |
| parameters: one row of 1 MiB | INVALID_ARGUMENT |
| prepared statements: 64 of a connection, 1,024 and 64 MiB in all | RESOURCE_EXHAUSTED |
| a prepared statement or a ticket not used for 10 minutes | NOT_FOUND |
| memory (`--memory`), shared by the statements | a statement spills to disk; one that cannot fails |
| what the engine's process allocates: half a GiB more | the statement fails (`embedded/memory.py`); where the process ends, those beside it get UNAVAILABLE, and another one is started |
| work that looks for no interrupt, 10 s beyond its time, or after it was cancelled | the process ends. Statements beside it run again, once, where they had no row yet; else they get UNAVAILABLE |
| a lake that does not answer, 15 s beyond a call's time, or after it was cancelled | the call is given up; the process goes on |
| a lake that cannot be read now | UNAVAILABLE |
| a row: 64 MiB | INVALID_ARGUMENT |
"""
