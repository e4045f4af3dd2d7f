"""Where decisions are kept: bytes under a revision.

What may live here: the contract (`base`) and one module for each place that can fulfil it. A store moves
opaque bytes and counts revisions. It never decodes them, never decides by what a job, a member or an event
means, and knows no other package of ours but `pliant.errors`; whoever needs meaning goes through
`pliant.wire` above it.
"""
