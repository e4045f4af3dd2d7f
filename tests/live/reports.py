"""Lines that a process of a test writes about itself."""

import json
import sys


def say(**what: object) -> None:
    """Write one JSON object as a line, by one call: `print` writes its end apart where output is unbuffered."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
