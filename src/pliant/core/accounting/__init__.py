"""Accounting of worker-seconds: goodput, activity, pauses."""
