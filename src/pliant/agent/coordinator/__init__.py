"""The agent's connection to its coordinator, and the coordinator as a child process."""
