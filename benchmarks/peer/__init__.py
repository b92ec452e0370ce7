"""The real Apache RocketMQ, run beside lakebroker."""
