"""What a training process does for itself: SIGTERM, the watchdog, measured pauses."""
