"""Published data sets by name: where they come from, how they are fetched, and read."""
