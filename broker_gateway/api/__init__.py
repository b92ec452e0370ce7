"""The edges: what comes from the wire becomes values of the broker, and what it says becomes replies."""
