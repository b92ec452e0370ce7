"""The lake's tables at one instant, alone or together with what the logs hold beyond them."""
