"""What a launch did, counted, and what it costs at least."""
