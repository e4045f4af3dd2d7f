"""The command line: one file for each group of commands, and nothing that decides anything.

A command reads its arguments, calls the package that does the work, and prints what came back. Nothing below
imports this package. What is slow to import is imported inside the command that needs it, so that
`pliant --help` stays quick; `main` is the only place that ends the process.
"""
