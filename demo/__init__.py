"""The whole system on one machine, with the official RocketMQ client: `python -m demo.run`."""
