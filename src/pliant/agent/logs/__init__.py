"""Worker output: captured, rotated, tailed, and searched for the cause of a failure."""
