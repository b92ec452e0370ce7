"""Remoting over TCP: connections, the server, the client."""
