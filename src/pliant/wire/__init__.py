"""Messages that cross a process boundary: typed JSON, and the routes they are sent to.

The codec turns the plain values of `pliant.core` into bytes and back, and tables describe the API. Nothing here opens a
socket or a file, and nothing here decides. Bytes that do not decode to exactly one value of a known type are refused
with the reason.
"""
