"""Parameter servers: which server holds which bucket of the tables, and how buckets move. Pure, like all of the core.

The rows of all tables lie in 1,024 buckets. A bucket has a primary, which workers talk to, and a backup on another
server. The coordinator decides on a layout and stores it. Its number is a generation, and the fencing token: a server
answers only requests of its current layout.
"""
