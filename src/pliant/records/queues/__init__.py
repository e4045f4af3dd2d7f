"""Queues with partitions as growing data: the interface, and Redis streams."""
