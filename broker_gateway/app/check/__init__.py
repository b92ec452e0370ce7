"""`lakebroker gateway --check`: what a start would find, looked at without one. The rules are the start's own where it has them."""
