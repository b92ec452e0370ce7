"""The commit log and nothing else: no gRPC, no asyncio, no Spark. Design: `docs/design.md`."""
