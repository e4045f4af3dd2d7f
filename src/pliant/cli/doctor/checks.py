"""What `pliant doctor` looks at. Every check gives a finding, also when all is well, and never raises."""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from pliant import __version__, settings
from pliant.cli.connect import Place
from pliant.client import Client
from pliant.credentials import Token, is_missing, read_token
from pliant.errors import BadInput, NotAllowed, PliantError
from pliant.wire.api import PROTOCOL, PROTOCOL_HEADER, About

FILES_MIN = 4096
FREE_WARNING = 1024**3
FREE_PROBLEM = 64 * 1024**2
TESTED = ((3, 11), (3, 12))
ANSWER_S = 3.0
NETWORKED = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "fuse.sshfs"}
)
VOLATILE = frozenset({"tmpfs", "ramfs"})


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result: what is, and what to do about it if anything."""

    check: str
    level: Level
    say: str
    do: str = ""


def checks(place: Place) -> list[Finding]:
    """Everything, in the order in which one would mend it."""
    home = settings.read().home
    token = _token(place.token_file)
    return [
        _python(),
        _packages(),
        _home(home),
        _disk(home),
        _files(),
        _proxies(),
        _token_finding(place.token_file, token),
        *(finding for url in place.urls for finding in _coordinator(url, token)),
    ]


# --------------------------------------------------------------------------------------- this machine


def _python() -> Finding:
    text = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in TESTED:
        return Finding("python", Level.OK, text)
    return Finding("python", Level.WARNING, f"{text} is not tested.", "Use Python 3.11 or 3.12.")


def _packages() -> Finding:
    found, wrong = [], []
    for line in metadata.requires("pliant") or ():
        form = re.match(r"([\w.-]+)>=([\d.]+)$", line)
        if form is None:  # of an extra
            continue
        try:
            version = metadata.version(form[1])
        except metadata.PackageNotFoundError:
            wrong.append(f"{form[1]} is missing")
            continue
        found.append(f"{form[1]} {version}")
        if _numbers(version) < _numbers(form[2]):
            wrong.append(f"{form[1]} {version} is older than {form[2]}")
    if wrong:
        return Finding(
            "packages", Level.PROBLEM, f"{'; '.join(wrong)}.", "Install Pliant again, with its dependencies."
        )
    return Finding("packages", Level.OK, f"pliant {__version__}; {', '.join(found)}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _home(home: Path) -> Finding:
    try:
        found = home.stat()
    except FileNotFoundError:
        return Finding(
            "home", Level.WARNING, f"{home} does not exist.", "`pliant coordinator` makes it when it starts."
        )
    except OSError as error:
        return Finding("home", Level.PROBLEM, f"{home}: {error.strerror}.", "Set PLIANT_HOME to a place of yours.")
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return Finding("home", Level.PROBLEM, f"{home} is no directory.", "Set PLIANT_HOME to another place.")
    if found.st_uid != os.geteuid():
        return Finding("home", Level.PROBLEM, f"{home} is somebody else's.", "Set PLIANT_HOME to a place of yours.")
    if mode & 0o022:
        return Finding(
            "home", Level.PROBLEM, f"Others may write to {home} (mode {mode:04o}).", f"Run: chmod 700 {home}"
        )
    if mode & 0o077:
        return Finding(
            "home", Level.WARNING, f"Others may look into {home} (mode {mode:04o}).", f"Run: chmod 700 {home}"
        )
    return Finding("home", Level.OK, str(home))


def _disk(home: Path) -> Finding:
    try:
        there = next(path for path in (home, *home.absolute().parents) if path.exists())
        kind, free = _file_system(there), shutil.disk_usage(there).free
    except OSError as error:
        say = f"{home} cannot be looked at: {error.strerror}."
        return Finding("disk", Level.PROBLEM, say, "Set PLIANT_HOME to a place of yours.")
    say = f"{there} is on {kind or 'an unknown file system'} with {_size(free)} free"
    if kind in NETWORKED:
        say += "; a SQLite store must not be on a network file system."
        return Finding("disk", Level.PROBLEM, say, "Set PLIANT_HOME, or --store sqlite:PATH, to a local disk.")
    if free < FREE_PROBLEM:
        return Finding("disk", Level.PROBLEM, f"{say}.", "Make room: a store that cannot write decides nothing.")
    if free < FREE_WARNING:
        return Finding("disk", Level.WARNING, f"{say}.", "Make room soon.")
    if kind in VOLATILE:
        return Finding("disk", Level.WARNING, f"{say}; it is empty after a reboot.", "Use a disk to keep jobs.")
    return Finding("disk", Level.OK, say)


def _file_system(path: Path) -> str:
    """Its type, from the mount that path is below; empty if the system does not tell."""
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, where, this, *_ = line.split(" ")
        where = where.replace("\\040", " ")
        if len(where) >= len(best) and path.resolve().is_relative_to(where):
            best, kind = where, this
    return kind


def _size(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB" if count >= 1024**3 else f"{count / 1024**2:.0f} MiB"


def _files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        say = f"A process may have {hard} files open; a coordinator needs one or two for each member."
        return Finding("files", Level.WARNING, say, f"Raise the hard limit: ulimit -Hn {FILES_MIN}, or LimitNOFILE=.")
    return Finding("files", Level.OK, "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard} open at once")


def _proxies() -> Finding:
    names = sorted(f"{name}_proxy" for name in getproxies_environment() if name != "no")
    if names:
        return Finding("proxies", Level.OK, f"{', '.join(names)} set; Pliant ignores them, a token is for nobody else")
    return Finding("proxies", Level.OK, "none set")


# --------------------------------------------------------------------------------- token and coordinator


def _token(path: Path) -> Token | BadInput:
    try:
        return read_token(path)
    except BadInput as error:
        return error


def _token_finding(path: Path, token: Token | BadInput) -> Finding:
    if isinstance(token, Token):
        return Finding("token", Level.OK, f"{token.id} in {path}")
    do = "Start a coordinator here, or bring a token: `pliant token create --out FILE`." if is_missing(path) else ""
    return Finding("token", Level.PROBLEM, token.why, do)


def _coordinator(url: str, token: Token | BadInput) -> Iterator[Finding]:
    name = f"coordinator {url}"
    try:
        port = _port_of(url)
        client = Client([url], token if isinstance(token, Token) else Token("", ""), patience_s=0.0)
    except BadInput as error:
        yield Finding(name, Level.PROBLEM, error.why, "Correct --coordinator or PLIANT_COORDINATOR.")
        return
    with client:
        yield _port(port)
        met = _met(url, name)
        yield met
        if met.level is Level.PROBLEM or not isinstance(token, Token):
            return
        try:
            about = client.about()
        except PliantError as error:
            no = isinstance(error, NotAllowed)
            do = "Take the token of this coordinator; its PLIANT_HOME may be another one." if no else ""
            yield Finding("credential", Level.PROBLEM, error.why, do)
            return
        yield _reach(about)
        yield from _who(about)


def _port_of(url: str) -> int:
    try:
        parts = urlsplit(url)
        return parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise BadInput(f"{url!r} is not a coordinator's URL: {error}.") from error


def _port(port: int) -> Finding:
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return Finding("port", Level.OK, f"{port}")
    if low <= port <= high:
        say = f"{port} is one that the system hands out to any program ({low} to {high})."
        return Finding("port", Level.WARNING, say, f"Listen below {low}, so that nobody else gets it in between.")
    return Finding("port", Level.OK, f"{port} is outside of what the system hands out ({low} to {high})")


def _met(url: str, name: str) -> Finding:
    """Who is there, asked without a token: whoever it is must not be shown one before we know."""
    parts = urlsplit(url)
    link = (HTTPSConnection if parts.scheme == "https" else HTTPConnection)(
        parts.hostname or "", parts.port, timeout=ANSWER_S
    )
    try:
        link.request("GET", "/healthz")
        answer = link.getresponse()
    except (HTTPException, OSError, ValueError) as error:
        say = f"Nobody answers: {str(error) or type(error).__name__}."
        return Finding(name, Level.PROBLEM, say, "Start one with `pliant coordinator`, or name another one.")
    finally:
        link.close()
    status, protocol = answer.status, answer.getheader(PROTOCOL_HEADER)
    if protocol is None:
        say = f"Something answers with status {status}, but it is no Pliant coordinator."
        return Finding(name, Level.PROBLEM, say, "Stop it, or let the coordinator --listen on another port.")
    if protocol != PROTOCOL:
        say = f"It speaks protocol {protocol}, we speak {PROTOCOL}."
        return Finding(name, Level.PROBLEM, say, "Install the same version of Pliant on both sides.")
    if status == 421:
        say = "It is not called by that name."
        return Finding(name, Level.PROBLEM, say, "Use its address, or start it with --host and that name.")
    return Finding(name, Level.OK, "it answers")


def _reach(about: About) -> Finding:
    confined = f", for job {about.job} alone" if about.job else ""
    return Finding("credential", Level.OK, f"the token is accepted, with scope {about.scope.value}{confined}")


def _who(about: About) -> Iterator[Finding]:
    if about.leads:
        yield Finding("decides", Level.OK, f"yes, for store {about.store[:8]}")
    else:
        say = f"It does not decide at the moment: {about.why}."
        yield Finding(
            "decides", Level.WARNING, say, "See its log. Name the other coordinator as well, if there is one."
        )
    if about.version == __version__:
        yield Finding("version", Level.OK, f"{about.version} on both sides")
    else:
        say = f"The coordinator is {about.version}, this is {__version__}."
        yield Finding("version", Level.WARNING, say, "Install the same version on both sides.")
