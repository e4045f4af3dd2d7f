"""The state of a job: frozen values, without decisions."""
