"""State of consumer groups on queues: in flight, invisible, attempts, dead letters. No IO."""
