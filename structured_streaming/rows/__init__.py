"""From scanned records to the rows of each table: pure functions over arrays."""
