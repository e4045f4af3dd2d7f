"""The same training without Pliant: what every membership history must come to, up to rounding."""

import torch
from torch.nn.functional import cross_entropy

from live.scenes import SOURCES, Average, Plan, data, net, optimizer_of, stream_point
from pliant.core.data.grid import Grid, change_batch
from pliant.torch.data.tools import TorchTools
from pliant.train.live.data.source import open_source


def plain(plan: Plan) -> tuple[list[float], list[float]]:
    """The weights at the end, and the loss of every step."""
    given = SOURCES[plan.source](plan)
    given.pop("collate_fn", None)
    source = open_source(**given, seed=plan.seed, tools=TorchTools())
    grid = Grid(source.samples, plan.batch, plan.slots or plan.batch, plan.epochs)
    for step, batch in plan.batches:
        grid = change_batch(grid, step + 1, batch)  # the members agree on it in the next step
    indices = source.indices(grid, plan.seed)
    samples = data(plan)
    model = net(plan)
    optimizer = optimizer_of(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4 if plan.nested else 30, 0.9)
    average = Average(model)
    losses = []
    for step in range(1, grid.total_steps + 1):
        chosen = torch.cat([torch.tensor(indices.of(step, slot)) for slot in grid.filled(step)])
        if plan.source == "stream":
            epoch = grid.cursor(step).epoch
            chosen = torch.tensor([stream_point(plan.samples, epoch, item) for item in chosen.tolist()])
        if plan.source == "sentences":  # a mean over words, whichever sentences they are in
            chosen = torch.cat([(torch.arange(each % 5) + each) % plan.samples for each in chosen.tolist()])
        optimizer.zero_grad()
        loss = cross_entropy(model(samples.x[chosen]), samples.y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if not plan.nested or grid.ends_epoch(step):
            scheduler.step()
        average.update()
        losses.append(loss.item())
    return [value for param in model.parameters() for value in param.detach().reshape(-1).tolist()], losses
