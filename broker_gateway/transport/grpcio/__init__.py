"""gRPC by grpcio's asyncio server."""
