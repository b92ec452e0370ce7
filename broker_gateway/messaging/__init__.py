"""What calls do, in the broker's own terms: nothing here knows a wire."""
