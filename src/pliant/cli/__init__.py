"""The command line. It makes no decisions.

A command parses its arguments, calls the package that does the work, and prints the result. No other package imports
this one. Slow imports happen inside the command that needs them, so that `pliant --help` stays fast. Only `main` ends
the process.
"""
