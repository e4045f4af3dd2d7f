"""The script's hyperparameters against those of a checkpoint."""

import copy
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from pliant.torch.state.hyperparameters import Hyperparameters


def built(
    lr: float | torch.Tensor, decay: float = 0.0, schedule: Any = None, kind: Any = torch.optim.AdamW, **more: Any
) -> Any:
    """Build an optimizer with two groups, and its scheduler, as a script would."""
    a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    groups = [{"params": [a]}, {"params": [b], "weight_decay": decay}]
    optimizer = kind(groups, lr=lr, **more)
    return optimizer, schedule(optimizer) if schedule is not None else None


def resumed(before: Any, now: Any) -> Hyperparameters:
    """Install the state of one optimizer and scheduler in another one."""
    (old, old_schedule), (new, new_schedule) = before, now
    found = Hyperparameters([new], {} if new_schedule is None else {"scheduler": new_schedule})
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    if new_schedule is not None:
        new_schedule.load_state_dict(copy.deepcopy(old_schedule.state_dict()))
    return found


def advance(pair: Any, steps: int) -> Any:
    optimizer, schedule = pair
    for _ in range(steps):
        optimizer.step()
        schedule.step()
    return pair


def test_equal_settings_have_nothing_to_report() -> None:
    found = resumed(built(0.1, 0.5), built(0.1, 0.5))
    assert found.changes() == []
    assert found.describe([], applied=True) == []


def test_a_changed_value_is_named_and_has_no_effect_until_it_is_applied() -> None:
    now = built(0.5, 0.3, betas=(0.8, 0.9))
    found = resumed(built(0.1, 0.5), now)
    changes = found.changes()
    which = "the checkpoint's is used; pliant run --override uses the script's"
    assert found.describe(changes, applied=False) == [
        f"betas is (0.8, 0.9) in the script and (0.9, 0.999) in the checkpoint: {which}",
        f"lr is 0.5 in the script and 0.1 in the checkpoint: {which}",
        f"weight_decay is 0.3 in the script and 0.5 in the checkpoint: {which}",
    ]
    assert now[0].param_groups[1]["lr"] == 0.1
    found.apply(changes)
    first, second = now[0].param_groups
    assert (first["lr"], first["betas"], first["weight_decay"]) == (0.5, (0.8, 0.9), 0.01)
    assert (second["lr"], second["betas"], second["weight_decay"]) == (0.5, (0.8, 0.9), 0.3)
    assert found.changes() == []


SCHEDULES = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.5, total_iters=4), lr_scheduler.StepLR(o, 5, 0.5)], [4]
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_goes_on_from_its_position_at_the_new_rate(schedule: Any) -> None:
    now = built(0.5, schedule=schedule)
    found = resumed(advance(built(0.1, schedule=schedule), 5), now)
    changes = found.changes()
    assert {each.name for each in changes} == {"lr"}
    found.apply(changes)
    whole = advance(built(0.5, schedule=schedule), 5)
    for _ in range(4):
        rates = [group["lr"] for group in now[0].param_groups]
        assert now[1].get_last_lr() == rates
        assert rates == pytest.approx([group["lr"] for group in whole[0].param_groups])
        advance(now, 1)
        advance(whole, 1)


def test_what_a_schedule_changes_by_itself_is_not_the_users_change() -> None:
    def cycle(optimizer: torch.optim.Optimizer) -> Any:
        return lr_scheduler.OneCycleLR(optimizer, 0.4, total_steps=20)

    same = resumed(advance(built(0.1, schedule=cycle), 5), built(0.1, schedule=cycle))
    assert same.changes() == []
    fixed = resumed(advance(built(0.1, schedule=SCHEDULES["step"]), 5), built(0.1, schedule=SCHEDULES["step"]))
    assert fixed.changes() == []


def test_a_rate_in_a_tensor_stays_a_tensor() -> None:
    now = built(torch.tensor(0.5), foreach=False)
    found = resumed(built(torch.tensor(0.25), foreach=False), now)
    found.apply(found.changes())
    rate = now[0].param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor)
    assert rate.item() == 0.5


def test_a_schedule_from_zero_takes_the_new_rate() -> None:
    now = built(0.5, schedule=SCHEDULES["lambda"])
    found = resumed(built(0.0, schedule=SCHEDULES["lambda"]), now)
    found.apply(found.changes())
    assert now[0].param_groups[0]["lr"] == 0.5


def test_of_several_optimizers_the_changed_one_is_named() -> None:
    one, two = built(0.1)[0], built(0.1)[0]
    found = Hyperparameters([one, two], {})
    two.param_groups[0]["lr"] = 0.2
    (line,) = found.describe(found.changes(), applied=True)
    assert line == "lr of optimizer 2 is 0.1 in the script and 0.2 in the checkpoint: the script's is used"
