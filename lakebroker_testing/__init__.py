"""For tests: a broker in this process whose clock the test moves, the gateway as a process, writers of logs.

    from lakebroker_testing.broker import InProcessBroker

    def test_an_unacknowledged_message_comes_again() -> None:
        with InProcessBroker() as broker:
            broker.create_topic("orders")
            broker.create_group("billing")
            broker.send("orders", b"one")
            _, (first,) = broker.receive("orders", "billing", invisible_ms=30_000)
            waiting = broker.begin_receive("orders", "billing", wait_ms=60_000)
            broker.advance(29.0)
            assert not waiting.done
            broker.advance(2.0)
            (again,) = waiting.messages
            assert again.system_properties.delivery_attempt == 2
            broker.ack("orders", "billing", again)
            broker.crash()  # as after kill -9; `restart` is a clean one
            assert broker.receive("orders", "billing")[1] == []

| module | holds |
|---|---|
| `broker` | `InProcessBroker`: a real store and broker, called with protobuf requests, without sockets |
| `calls` | a call under way |
| `clock` | its clock and event loop |
| `faults` | damage and errors under it |
| `messages` | requests in a line each |
| `gateway`, `client` | processes of lakebroker on free ports; plain gRPC calls to them |
| `logs` | writers of logs, good and damaged |
| `prestarted`, `programs`, `ports` | processes of `lakebroker` as forks, waits until a program is ready, free ports |
| `crash_image`, `timers` | what a crash leaves of a folder; stores with very many pending timers |
| `official_client`, `real_rocketmq` | the official Python client; the real RocketMQ (needs a JDK and Maven) |

Nothing of the product imports this package.
"""
