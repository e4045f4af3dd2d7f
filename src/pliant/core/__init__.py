"""The decisions, pure.

What may live here: values and functions of values, standard library only. No clock, no randomness, no I/O, no
threads, no logging; `now` and seeds are arguments, and "not yet" is a returned value with its reason. Whatever
touches the world is a shell around this package, and the simulator runs this very code under a clock of its own.
"""
