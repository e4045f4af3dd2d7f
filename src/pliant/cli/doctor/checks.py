"""The checks of `pliant doctor`. Each returns a finding, even if all is well, and never raises."""

from __future__ import annotations

import os
import re
import resource
import shutil
import ssl
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from pliant import __version__, settings
from pliant.cli.doctor.finding import Finding, Level
from pliant.cli.doctor.training_checks import check_clock, check_gloo_interface, check_gpus, check_torch
from pliant.client import Client
from pliant.credentials import CoordinatorAddress, TlsFiles, Token, is_missing, is_private, read_token
from pliant.errors import BadInput, NotAllowed, PliantError
from pliant.tls import client_context, describe_failure
from pliant.wire.api import PROTOCOL, PROTOCOL_HEADER, About
from pliant.wire.protocol import describe_old_coordinator, parse_version

FILES_MIN = 4096
FREE_WARNING_BYTES = 1024**3
FREE_PROBLEM_BYTES = 64 * 1024**2
TESTED_PYTHONS = ((3, 11), (3, 12), (3, 13))
ANSWER_S = 3.0
CERTIFICATE_WARNING_S = 30 * 86400.0
NETWORKED = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "fuse.sshfs"}
)
START_OR_COPY = "Start a coordinator here, or copy a token from `pliant token create --out FILE` here."
NO_ANSWER = "No coordinator answers"
VOLATILE = frozenset({"tmpfs", "ramfs"})


def run_checks(address: CoordinatorAddress, *, named: bool) -> list[Finding]:
    """Run all checks, in the order in which problems should be fixed.

    Unless a coordinator or token is `named`, the machine may have none: `pliant run` starts its own.
    """
    home = settings.read().home
    token = _read_token(address.token_file)
    has_coordinator = named or not is_missing(address.token_file)
    connected = [*_check_coordinators(address, token, named=named)] if has_coordinator else [_NO_COORDINATOR]
    return [
        _check_python(),
        _check_packages(),
        _check_home(home),
        _check_disk(home),
        _check_file_limit(),
        _check_proxies(),
        check_torch(),
        check_gpus(),
        check_gloo_interface(),
        *connected,
        *([] if any(finding.check == "clock" for finding in connected) else [check_clock(None)]),
    ]


_NO_COORDINATOR = Finding(
    "coordinator", Level.OK, "none on this machine, and none needed: `pliant run` starts one for each job"
)


# --------------------------------------------------------------------------------------- this machine


def _check_python() -> Finding:
    text = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in TESTED_PYTHONS:
        return Finding("python", Level.OK, text)
    return Finding("python", Level.WARNING, f"{text} is not tested with Pliant.", "Use Python 3.11, 3.12 or 3.13.")


def _check_packages() -> Finding:
    found, wrong = [], []
    for line in metadata.requires("pliant") or ():
        form = re.match(r"([\w.-]+)>=([\d.]+)$", line)
        if form is None:  # a requirement of an extra
            continue
        try:
            version = metadata.version(form[1])
        except metadata.PackageNotFoundError:
            wrong.append(f"{form[1]} is missing")
            continue
        found.append(f"{form[1]} {version}")
        if _version_numbers(version) < _version_numbers(form[2]):
            wrong.append(f"{form[1]} {version} is older than {form[2]}")
    if wrong:
        return Finding("packages", Level.PROBLEM, f"{'; '.join(wrong)}.", "Reinstall Pliant with its dependencies.")
    return Finding("packages", Level.OK, f"pliant {__version__}; {', '.join(found)}")


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _check_home(home: Path) -> Finding:
    try:
        found = home.stat()
    except FileNotFoundError:
        return Finding("home", Level.OK, f"{home} does not exist yet. `pliant run` creates it.")
    except OSError as error:
        return Finding("home", Level.PROBLEM, f"{home}: {error.strerror}.", "Set PLIANT_HOME to a folder of your own.")
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return Finding("home", Level.PROBLEM, f"{home} is not a folder.", "Set PLIANT_HOME to another folder.")
    if found.st_uid != os.geteuid():
        return Finding(
            "home", Level.PROBLEM, f"{home} belongs to another user.", "Set PLIANT_HOME to a folder of your own."
        )
    if is_private(found):
        return Finding("home", Level.OK, str(home))
    if mode & 0o022:
        return Finding(
            "home", Level.PROBLEM, f"Other users can write to {home} (mode {mode:04o}).", f"Run: chmod 700 {home}"
        )
    return Finding("home", Level.WARNING, f"Other users can read {home} (mode {mode:04o}).", f"Run: chmod 700 {home}")


def _check_disk(home: Path) -> Finding:
    try:
        there = next(path for path in (home, *home.absolute().parents) if path.exists())
        kind, free = _file_system(there), shutil.disk_usage(there).free
    except OSError as error:
        message = f"{home} cannot be read: {error.strerror}."
        return Finding("disk", Level.PROBLEM, message, "Set PLIANT_HOME to a folder of your own.")
    message = f"{there} is on {kind or 'an unknown file system'} with {_format_size(free)} free"
    if kind in NETWORKED:
        message += "; a SQLite store must not be on a network file system."
        return Finding("disk", Level.PROBLEM, message, "Set PLIANT_HOME, or --store sqlite:PATH, to a local disk.")
    if free < FREE_PROBLEM_BYTES:
        return Finding(
            "disk", Level.PROBLEM, f"{message}.", "Free disk space. A coordinator that cannot write makes no decisions."
        )
    if free < FREE_WARNING_BYTES:
        return Finding("disk", Level.WARNING, f"{message}.", "Free disk space soon.")
    if kind in VOLATILE:
        return Finding(
            "disk",
            Level.WARNING,
            f"{message}; its files are lost at a reboot.",
            "Use a disk to keep jobs across reboots.",
        )
    return Finding("disk", Level.OK, message)


def _file_system(path: Path) -> str:
    """Return the type of the file system of that path; empty if unknown."""
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


def _format_size(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB" if count >= 1024**3 else f"{count / 1024**2:.0f} MiB"


def _check_file_limit() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        message = f"A process may open {hard} files; a coordinator needs one or two per member."
        return Finding(
            "files", Level.WARNING, message, f"Raise the hard limit: ulimit -Hn {FILES_MIN}, or LimitNOFILE=."
        )
    return Finding("files", Level.OK, "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard} open at once")


def _check_proxies() -> Finding:
    names = sorted(f"{name}_proxy" for name in getproxies_environment() if name != "no")
    if names:
        return Finding(
            "proxies", Level.OK, f"{', '.join(names)} set; Pliant ignores them, so that no proxy receives a token"
        )
    return Finding("proxies", Level.OK, "none set")


# --------------------------------------------------------------------------------- token and coordinator


def _read_token(path: Path) -> Token | BadInput:
    try:
        return read_token(path)
    except BadInput as error:
        return error


def _check_token(path: Path, token: Token | BadInput) -> Finding:
    if isinstance(token, Token):
        return Finding("token", Level.OK, f"{token.id} in {path}")
    fix = START_OR_COPY if is_missing(path) else ""
    return Finding("token", Level.PROBLEM, token.why, fix)


def _check_coordinators(address: CoordinatorAddress, token: Token | BadInput, *, named: bool) -> Iterator[Finding]:
    """Check the token and each coordinator. Without a named one, none needs to answer."""
    yield _check_token(address.token_file, token)
    for url in address.urls:
        for finding in _check_coordinator(url, token, address.tls):
            silent = finding.level is Level.PROBLEM and finding.message.startswith(NO_ANSWER)
            yield replace(finding, level=Level.WARNING) if silent and not named else finding


def _check_coordinator(url: str, token: Token | BadInput, tls: TlsFiles) -> Iterator[Finding]:
    name = f"coordinator {url}"
    try:
        port = _port_of(url)
        known = token if isinstance(token, Token) else Token("", "")
        client = Client([url], known, patience_s=0.0, tls=tls)
    except BadInput as error:
        yield Finding(name, Level.PROBLEM, error.why, "Correct --coordinator or PLIANT_COORDINATOR.")
        return
    with client:
        yield _check_port(port)
        met, ends_at = _check_answer(url, name, tls)
        yield met
        if ends_at is not None:
            yield _check_certificate(ends_at)
        if met.level is Level.PROBLEM or not isinstance(token, Token):
            return
        try:
            about = client.about()
        except PliantError as error:
            refused = isinstance(error, NotAllowed)
            fix = "Use the token of this coordinator, which may have another PLIANT_HOME." if refused else ""
            yield Finding("credential", Level.PROBLEM, error.why, fix)
            return
        yield _check_credential(about)
        yield from _check_leader_and_version(about)
        yield check_clock(about.now or None)


def _port_of(url: str) -> int:
    try:
        parts = urlsplit(url)
        return parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise BadInput(f"{url!r} is not a coordinator's URL: {error}.") from error


def _check_port(port: int) -> Finding:
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return Finding("port", Level.OK, f"{port}")
    if low <= port <= high:
        message = f"{port} is in the range that the system assigns to any program ({low} to {high})."
        return Finding(
            "port", Level.WARNING, message, f"Listen below {low}, so that no other program can take the port."
        )
    return Finding("port", Level.OK, f"{port} is outside the range that the system assigns ({low} to {high})")


def _check_answer(url: str, name: str, tls: TlsFiles) -> tuple[Finding, float | None]:
    """Find out what answers at a URL, without sending the token to it, and when its certificate ends."""
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    link: HTTPConnection = HTTPConnection(host, parts.port, timeout=ANSWER_S)
    if secure:
        link = HTTPSConnection(host, parts.port, timeout=ANSWER_S, context=client_context(tls))
    ends_at: float | None = None
    try:
        link.connect()
        if isinstance(link.sock, ssl.SSLSocket) and (peer := link.sock.getpeercert()):
            ends_at = ssl.cert_time_to_seconds(str(peer["notAfter"]))
        link.request("GET", "/healthz", headers={PROTOCOL_HEADER: PROTOCOL})
        answer = link.getresponse()
    except ssl.SSLError as error:
        message = f"No secure connection: {describe_failure(error) or error}."
        return Finding(name, Level.PROBLEM, message), ends_at
    except (HTTPException, OSError, ValueError) as error:
        message = f"{NO_ANSWER}: {str(error) or type(error).__name__}."
        fix = "Start one with `pliant coordinator`, or pass the URL of another one."
        return Finding(name, Level.PROBLEM, message, fix), ends_at
    finally:
        link.close()
    return _judge_answer(answer.status, answer.getheader(PROTOCOL_HEADER), name), ends_at


def _judge_answer(status: int, protocol: str | None, name: str) -> Finding:
    version = parse_version(protocol or "")
    if version is None:
        message = f"A server answers with status {status}, but it is not a Pliant coordinator."
        return Finding(name, Level.PROBLEM, message, "Stop it, or start the coordinator on another port with --listen.")
    if status == 426 or describe_old_coordinator(version):
        message = f"The coordinator uses protocol {version}, this version {PROTOCOL}."
        older = "this" if status == 426 else "the coordinator's"
        return Finding(name, Level.PROBLEM, message, f"Upgrade Pliant on {older} machine.")
    if status == 421:
        message = "The coordinator does not accept that host name."
        return Finding(name, Level.PROBLEM, message, "Use its address, or start it with --host NAME.")
    return Finding(name, Level.OK, "a coordinator answers")


def _check_certificate(ends_at: float) -> Finding:
    day = time.strftime("%Y-%m-%d", time.gmtime(ends_at))
    if ends_at - time.time() < CERTIFICATE_WARNING_S:
        message = f"The coordinator's certificate ends on {day}."
        return Finding("certificate", Level.WARNING, message, "Run `pliant certs renew` on the CA's machine.")
    return Finding("certificate", Level.OK, f"the coordinator's is accepted, and valid until {day}")


def _check_credential(about: About) -> Finding:
    confined = f", for job {about.job} only" if about.job else ""
    return Finding("credential", Level.OK, f"the token is accepted, with scope {about.scope.value}{confined}")


def _check_leader_and_version(about: About) -> Iterator[Finding]:
    if about.leads:
        yield Finding("leader", Level.OK, f"yes, for store {about.store[:8]}")
    else:
        message = f"The coordinator is not the leader now: {about.why}."
        yield Finding(
            "leader", Level.WARNING, message, "See its log. If there is another coordinator, pass its URL as well."
        )
    if about.version == __version__:
        yield Finding("version", Level.OK, f"{about.version} on both machines")
    else:
        message = f"The coordinator runs {about.version}, this machine {__version__}."
        yield Finding("version", Level.WARNING, message, "Install the same version on both machines.")
