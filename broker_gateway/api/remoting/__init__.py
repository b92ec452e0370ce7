"""The remoting transport: bytes in, a call on a service, bytes out."""
