"""What the broker looks after by itself: retention, damage in the store, groups that fell far behind."""
