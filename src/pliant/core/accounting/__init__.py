"""Where worker-seconds went: goodput, activity, pauses."""
