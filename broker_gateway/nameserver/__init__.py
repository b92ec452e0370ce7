"""A name server: routes of topics, kept from what brokers register. Compatible with RocketMQ's."""
