"""What crosses a process boundary: messages as typed JSON, and where they are sent.

What may live here: the codec, which turns the plain values of `pliant.core` into bytes and back, and tables
that describe the API. Nothing here opens a socket or a file, and nothing here decides: bytes that do not
decode to exactly one value of a known type are refused with the reason.
"""
