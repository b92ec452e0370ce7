"""What administrators ask of a broker over remoting, as calls with plain values; a refusal is a RequestError."""
