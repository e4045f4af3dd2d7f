"""A script of the fake framework."""

from typing import Any

import numpy as np

from frames import fake
from frames.story import FEATURES, FramePlan, Story, points
from live.reports import say
from pliant.train.live.data.tools import Arrays
from pliant.train.reduce.noise import NoiseScale

Plan = FramePlan


def warm_up() -> None:
    """Nothing is left to import."""


def train(plan: FramePlan) -> None:
    story = Story(plan)
    frame = fake.FakeFrame(FEATURES, 0.05, plan.own_seed)
    frame.decay = 0.0 if plan.averages else 0.9
    x, y = points(plan)
    data = Arrays(x.astype(np.float64), y.astype(np.float64))
    with fake.join() as job:
        noise = NoiseScale()
        run = job.train(frame, data, state={"noise": noise, **story.state}, **plan.arguments)
        own = run.average_models(plan.averages) if plan.averages else None
        say(joined=True)
        weights: dict[int, float] = {}  # by step, of what this member computed
        for x, y in run:
            weights[run.step_number] = weights.get(run.step_number, 0.0) + run._loop.item_weight
            story.at("forward", run)
            loss, grads = frame.gradients(x, y)
            run.log(loss=loss)
            story.at("backward", run)
            if run.step(grads):
                story.stepped(run, weight=weights[run.step_number])
                if plan.evaluate and run.step_number % 10 == 0:
                    totals = run.evaluate(sums, data, batch_size=7)
                    say(evaluated=run.step_number, count=totals["count"], total=totals["total"])
        measured = noise.state_dict()
        found = [*frame.arrays_now, *frame.momentum, frame.mean]
        distance = 0.0 if own is None else own.distance
        story.done(found, also=list(measured.values()), noise=measured, distance=distance)


def sums(batch: tuple[Any, Any]) -> dict[str, Any]:
    _, y = batch
    return {"count": len(y), "total": y.sum()}
