"""gRPC: the public API of RocketMQ 5.x, the Log and Admin services, health and reflection."""
