"""The synchronous service around the job's decisions: inbox, pump, liveness, leadership."""
