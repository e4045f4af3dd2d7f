"""Simulated task queues: members that take shards, each at its own pace."""
