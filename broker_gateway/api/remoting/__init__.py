"""The remoting edge: requests of RocketMQ's own protocol."""
