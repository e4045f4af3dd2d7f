"""A live script without a framework, for tests of jobs that share a pool: `pool_worker.py STEPS PACE_S QUICK`.

Each step takes `PACE_S` with two workers until the file `QUICK` exists. The last line is a digest of the trained state.
"""

import sys
import threading
from hashlib import blake2b
from pathlib import Path

import numpy as np

from frames import fake
from pliant.train.live.data.tools import Arrays

steps, pace_s, quick = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
chance = np.random.Generator(np.random.PCG64(1))
x = chance.normal(size=(64, 6))
frame = fake.FakeFrame(6, 0.01, 0)
never = threading.Event()
with fake.join() as job:
    run = job.train(
        frame,
        Arrays(x, x.sum(axis=1)),
        batch_size=8,
        epochs=steps // 8,
        seed=7,
        slots=8,
        deterministic=True,
    )
    for a, b in run:
        if not quick.exists():
            never.wait(pace_s / 4)  # more workers are faster: a job that gained nothing from them would not grow back
        run.step(frame.gradients(a, b)[1])
digest = blake2b(b"".join(each.tobytes() for each in [*frame.arrays_now, *frame.momentum]), digest_size=8)
print("digest", digest.hexdigest())
