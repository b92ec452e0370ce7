"""Options: our groups, changes while the broker runs, the catalogue of RocketMQ's options, the generated document."""
