"""gRPC over HTTP/2 inside the event loop: `engine` (HTTP/2), `call` (gRPC), `server` (ports, TLS, drain)."""
