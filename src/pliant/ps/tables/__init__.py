"""Tables in the memory of one process: their settings, their rows, and copies of their buckets."""
