"""Inputs that broke a parser once, by its name. They run before all others, here and in `make fuzz`."""

from __future__ import annotations

DEEP = b"[" * 3000
DIGITS = b"9" * 5000

KEPT: dict[str, tuple[bytes, ...]] = {
    # Text that is not UTF-8 ended the thread of a connection with a traceback.
    "hello": (b"\x95\xae\xaepliant-peers-1\x03\xa1a\xa1b\xc4 " + bytes(33),),
    "request of a peer": (b"\x94\xafRpcNotifi\x94\xafRpcNotification\x02\xa1x\xc4\x00",),
    "reply of a peer": (b"\x93\xae\xffpcReplyHeader\xc4\x04head\n", b"\x93\xaeRpcReplyHeader\xc4\x04head\xff"),
    "value of a peer": (b"\x93\xa2k2\xc4\x02\x00\x00" + b"\x91" * 3000,),
    # Errors other than ValueError were not taken for damage.
    "tree as JSON": (
        b'{"format": "pliant state 1", "state": {"$deque": [], "maxlen": 1000000000000000000000000000000}}',
    ),
    "manifest with a correct hash": (b'{"format": "pliant checkpoint 1", "name": ' + DEEP,),
    "server-sent events": (b"id: x\ndata: {}\n\n", b"id: " + DIGITS + b"\n\n"),
    # Files of a job's folder that were damaged stopped commands with a traceback.
    "endpoint.json": (b'{"url": ' + DEEP,),
    "process in endpoint.json": (b'{"url": "http://127.0.0.1:7711", "pid": 1e999}', DEEP),
    "command.json": (b'{"script": "train.py", "args": ["--lr"], "options": {"workers": 2147483648}}', DEEP),
    "metrics.csv": (b"s.5\n2,0,1.5,0.25\n", b"step\n\xff\n", b"a,b\n1,2\n"),
    # Times of clouds.
    "notice of Azure": (
        b'{"Events": [{"EventType": "Preempt", "Resources": ["vm"], "NotBefore": "Mon, 1 Sep 2026 1:2:4294967296"}]}',
    ),
    "time of a notice": (b"Mon, 19 Sep 9223372036854775808 18:29:47 GMT",),
    # Numbers of people.
    "environment of a worker": (b"LOCAL_RANK=NaN", b"WORLD_SIZE=1e999"),
    "environment of torchrun": (b"MASTER_PORT=-Infinity",),
    "--rdzv-conf": (b"timeout=" + DIGITS,),
    "--local-ranks-filter": (b"0," + DIGITS,),
    "--redirects": (DIGITS + b":1",),
    "--store etcd:": (b"h:" + DIGITS,),
    "events in etcd": (b"", b"\xff\xff\xff\xff"),
    "hold in etcd": (b'{"owner": "\xff"}', DEEP),
    "segment in etcd": (b"x name", b"3 \xff"),
    "--listen": (b"[::1]:" + DIGITS,),
}
