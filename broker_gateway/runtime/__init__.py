"""What everything runs on: ticks of the event loop, scheduled tasks, clocks, shares, files, ports, logging."""
