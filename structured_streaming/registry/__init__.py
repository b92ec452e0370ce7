"""Schema registries with Confluent's HTTP interface: what a subject has, and how they are spoken to."""
