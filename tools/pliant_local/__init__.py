"""Where agents come from when nobody gives us machines: a cluster on this one.

What may live here: agents as processes with homes of their own, a network of namespaces for them, a schedule of how
many there are when, the way to steer them while they run, and a trainer that needs no framework. How many agents are
added and who is removed is decided in `schedule`, by pure functions. Nothing here prints, and nothing here knows how
processes are kept: `pliant_local.command` brings that along. Importing this package alone loads nothing.
"""
