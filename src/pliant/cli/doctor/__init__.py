"""`pliant doctor`: checks of this machine's set-up."""
