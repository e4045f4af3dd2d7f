"""Stores of decisions: bytes under a revision.

`base` is the contract, and each other module implements it. A store moves opaque bytes and counts revisions. It never
decodes them and imports no other package of Pliant but `pliant.errors`. `pliant.wire` above it gives the bytes a
meaning.
"""
