"""Move batches to the model's device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import MutableMapping, MutableSequence
from typing import Any

import torch


def move_to_device(data: Any, device: torch.device, *, pin: bool = False) -> Any:
    """Return the data with every tensor on the device and all containers rebuilt.

    Objects with a `to` method are moved by it. Other objects that are not containers stay as they are.
    """
    if isinstance(data, torch.Tensor):
        if data.device == device:
            return data
        if pin and data.device.type == "cpu":
            return data.pin_memory().to(device, non_blocking=True)
        return data.to(device)
    if isinstance(data, str | bytes | bytearray | int | float) or data is None:
        return data
    if callable(getattr(data, "to", None)):
        return data.to(device)
    if isinstance(data, tuple):
        values = [move_to_device(value, device, pin=pin) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    if isinstance(data, MutableMapping):
        return _refilled(data, {key: move_to_device(value, device, pin=pin) for key, value in data.items()})
    if isinstance(data, MutableSequence):
        return _refilled(data, dict(enumerate([move_to_device(value, device, pin=pin) for value in data])))
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        new = copy.copy(data)
        for field in dataclasses.fields(data):
            # Works for frozen dataclasses, too: no other code has the copy yet.
            object.__setattr__(new, field.name, move_to_device(getattr(data, field.name), device, pin=pin))
        return new
    return data


def _refilled(container: Any, values: dict[Any, Any]) -> Any:
    new = copy.copy(container)
    for key, value in values.items():
        new[key] = value
    return new
