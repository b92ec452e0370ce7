"""What each call does. No transport types: requests, a `CallContext`, replies."""
