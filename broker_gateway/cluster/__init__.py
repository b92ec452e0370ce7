"""Registration with name servers, and what they tell of other brokers."""
