"""Checks of what training needs on this machine: PyTorch, GPUs, the network interface of gloo, and the clock."""

from __future__ import annotations

import socket
import time
from importlib import metadata
from pathlib import Path

import pliant
from pliant import settings
from pliant.cli.doctor.finding import Finding, Level
from pliant.cli.output import count, local_time

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
CLOCK_S = 5.0  # a larger difference from the coordinator's clock is reported


def check_torch() -> Finding:
    """Import PyTorch and check that it can train with several workers."""
    try:
        version = metadata.version("torch")
        from pliant.torch.probe import has_gloo
    except (metadata.PackageNotFoundError, ModuleNotFoundError):
        return Finding(
            "torch",
            Level.WARNING,
            "PyTorch is not installed for this Python.",
            "To train with PyTorch, install Pliant with the extra `torch`, or into the environment that has PyTorch.",
        )
    except (ImportError, OSError) as error:
        return Finding("torch", Level.PROBLEM, f"PyTorch cannot be imported: {error}.", "Install PyTorch again.")
    if not has_gloo():
        message = (
            f"PyTorch {version} was built without gloo. Scripts that call init_process_group with gloo fail; live "
            "training is not affected."
        )
        return Finding("torch", Level.WARNING, message, "For such scripts install a build with gloo, as on PyPI.")
    return Finding("torch", Level.OK, f"{version}, with gloo")


def check_gpus() -> Finding:
    """Compare the GPUs of the machine with those that PyTorch can use."""
    try:
        from pliant.torch.probe import gpu_names
    except (ImportError, OSError):
        return Finding("gpus", Level.OK, "not checked, because PyTorch cannot be imported")
    if names := gpu_names():
        return Finding("gpus", Level.OK, f"{count(len(names), 'GPU')}: {', '.join(names)}")
    if next(Path("/dev").glob("nvidia[0-9]*"), None) is not None:
        return Finding(
            "gpus",
            Level.WARNING,
            f"This machine has an NVIDIA GPU, but PyTorch {metadata.version('torch')} cannot use it.",
            "Install a build of PyTorch with CUDA that fits the driver; `nvidia-smi` shows the driver's version.",
        )
    return Finding("gpus", Level.OK, "none; workers train on the CPU")


def check_gloo_interface() -> Finding:
    """Check that gloo finds an address of this machine in scripts that leave the choice to it."""
    chosen = settings.with_prefix(INTERFACE_VARIABLE).get(INTERFACE_VARIABLE, "")
    there = [name for _, name in socket.if_nameindex()]
    if chosen:
        missing = [name for name in chosen.split(",") if name not in there]
        if not missing:
            return Finding("gloo", Level.OK, f"uses {chosen} ({INTERFACE_VARIABLE})")
        message = f"{INTERFACE_VARIABLE} names {', '.join(missing)}; the interfaces here are {', '.join(there)}."
        return Finding("gloo", Level.PROBLEM, message, f"Unset {INTERFACE_VARIABLE}, or set it to one of these.")
    host = socket.gethostname()
    fix = f"Set {INTERFACE_VARIABLE} to an interface ({', '.join(there)}), or add the name to /etc/hosts."
    effect = "Scripts that call init_process_group with gloo may not connect; live training is not affected."
    try:
        found = {str(where[0]) for _, _, _, _, where in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        message = f"The host name {host} cannot be resolved ({error.strerror}). {effect}"
        return Finding("gloo", Level.WARNING, message, fix)
    if not any(_is_local(address) for address in found):
        message = f"The host name {host} resolves to {', '.join(sorted(found))}, not to this machine. {effect}"
        return Finding("gloo", Level.WARNING, message, fix)
    return Finding("gloo", Level.OK, f"uses the address of {host}, {', '.join(sorted(found))}")


def _is_local(address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def check_clock(coordinator_now: float | None) -> Finding:
    """Compare the clock with the coordinator's, or without one with the time at which Pliant was installed."""
    now = time.time()
    text = local_time(now)
    fix = "Set the clock, and keep it right with chrony or systemd-timesyncd."
    if coordinator_now is not None and abs(now - coordinator_now) > CLOCK_S:
        how = "ahead of" if now > coordinator_now else "behind"
        message = f"{text}, {abs(now - coordinator_now):.0f} s {how} the coordinator's clock."
        return Finding("clock", Level.WARNING, message, fix)
    installed = Path(pliant.__file__).stat().st_mtime
    if now < installed:
        message = f"{text} is before Pliant was installed ({local_time(installed)}): times and ages will be wrong."
        return Finding("clock", Level.WARNING, message, fix)
    agrees = "" if coordinator_now is None else ", as the coordinator's"
    return Finding("clock", Level.OK, f"{text}{agrees}")
