"""What the gateway reads from Delta."""
