"""Every order of events in a small world."""
