"""A script that configures logging sees its own lines, not Pliant's requests."""

import subprocess
import sys

SCRIPT = """
import logging
logging.basicConfig(level=logging.INFO)
import pliant.client
logging.getLogger("httpx2").info("HTTP Request: GET")
logging.getLogger("httpcore2.connection").info("connect_tcp.started")
logging.getLogger("httpx2").warning("shown")
"""


def test_requests_are_not_logged_at_the_level_of_a_script() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["WARNING:httpx2:shown"]
