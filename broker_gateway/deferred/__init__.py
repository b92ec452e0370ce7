"""What is due later: timers, delay levels, halves of transactions; found again after any crash."""
