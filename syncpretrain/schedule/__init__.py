"""The schedule, pure: events in, commands out; no threads, clocks or arrays."""
