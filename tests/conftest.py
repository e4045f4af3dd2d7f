"""Settings of every test: the profiles of Hypothesis, and a Ctrl-C that works.

By default the examples are the same every time, so that `make test` passes or fails for a reason in the code.
`make test SEED=7` draws others. There is no deadline for one example: the machines we run on are shared.
"""

import signal

from hypothesis import HealthCheck, settings

# A shell starts what it runs in the background with SIGINT ignored, and children inherit that; tests of Ctrl-C would
# wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "explore", deadline=None, max_examples=500, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")
