"""Pure decisions of Pliant: values and functions of values.

This package uses the standard library only. It has no clock, no randomness, no I/O, no threads and no logging: `now`
and seeds are arguments, and "not yet" is a returned value with its reason. Other packages are shells that do the I/O.
The simulator runs this same code under its own clock.
"""
