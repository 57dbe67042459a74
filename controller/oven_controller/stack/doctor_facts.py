"""Collects the facts that `doctor` judges. It starts a server for a moment, and imports none of the packages."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from oven_controller.stack import doctor
from oven_controller.stack.doctor import Check, Package
from oven_core.bus.connection import Bus
from oven_core.errors import OvenError, reason
from oven_core.security.credentials import Credentials
from oven_llm.sandbox.probe import probe
from oven_runs.home.run_folder import Home
from oven_runs.server import embedded as servers

if TYPE_CHECKING:
    import psutil

DISTRIBUTION = "oven-controller"
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(\[[^]]*\])?(?P<required>.*)")
COMMAND_S = 2.0
"""Timeout of a program that prints its version."""


def examine(home: Home, port: int | None = None) -> list[Check]:
    """Run all checks, in the order in which their problems would show."""
    return [
        doctor.python((sys.version_info.major, sys.version_info.minor, sys.version_info.micro)),
        *(doctor.extra(name, packages(name)) for name in doctor.NEEDED_FOR),
        doctor.compute(os.cpu_count() or 1, os.environ, gpus(), installed("torch")),
        start_server(),
        doctor.port(port, port_is_free(port)),
        doctor.home(home.path, *writable(home.path)),
        doctor.terminal(sys.stdin.isatty() and sys.stdout.isatty(), os.environ, *shutil.get_terminal_size()),
        doctor.sandbox((support := probe()).backends, support.landlock),
        doctor.keys([name for name in doctor.KEYS if name in os.environ]),
        doctor.leftovers(leftovers(home)),
    ]


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def packages(extra: str, distribution: str = DISTRIBUTION) -> list[Package]:
    """The packages that an extra requires, with their installed versions, from the metadata."""
    required_packages = []
    for line in (requires(distribution) if installed(distribution) else None) or ():
        text, _, marker = line.partition(";")
        if f"extra == '{extra}'" not in marker.replace('"', "'"):
            continue
        requirement = _REQUIREMENT.match(text.strip())
        if requirement is None:
            continue
        name, required = requirement["name"], requirement["required"].strip(" ()")
        version_here = installed(name)
        required_packages.append(Package(name, required, version_here, _fits(required, version_here)))
    return required_packages


def _fits(required: str, version_here: str | None) -> bool | None:
    """Whether a version satisfies a specifier; None if that cannot be told."""
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
    except ImportError:
        return None
    try:
        return version_here is not None and SpecifierSet(required).contains(version_here, prereleases=True)
    except InvalidSpecifier:
        return None


def gpus() -> list[str]:
    """The GPUs, as NVIDIA's driver names them."""
    output = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return [line.strip() for line in output.splitlines() if line.strip()]


def _output(*command: str) -> str:
    """The standard output of a command; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def start_server() -> Check:
    """Start the real server on a free port with a temporary store, and connect to it."""
    try:
        binary = servers.binary()
    except OvenError:
        return doctor.server(None, "", None, "")
    version_line = _output(binary, "--version").removeprefix("nats-server: ")
    try:
        return doctor.server(binary, version_line, asyncio.run(_seconds_to_answer()), "")
    except (OvenError, OSError) as error:
        return doctor.server(binary, version_line, None, (str(error) or reason(error)).splitlines()[-1])


async def _seconds_to_answer() -> float:
    with tempfile.TemporaryDirectory(prefix="oven-doctor-") as folder:
        files = servers.ServerFolder(Path(folder), "doctor")
        admin = Credentials.load(files.add_user("admin", "admin"))
        began = time.monotonic()
        server = await servers.EmbeddedServer.start(files, Path(folder) / "nats-server.log")
        try:
            async with Bus.connect(server.url, admin):
                return time.monotonic() - began
        finally:
            await server.stop()


def port_is_free(port: int | None) -> bool:
    try:
        return servers.is_free(port if port is not None else servers.free_port())
    except OSError:
        return False


def writable(path: Path) -> tuple[str, int]:
    """(problem, free bytes). The folder is not created, and no file stays there."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"x" * 4096)
        return "", shutil.disk_usage(existing).free
    except OSError as error:
        return f"cannot be written to ({error.strerror})", 0


def leftovers(home: Home) -> list[tuple[str, int, str]]:
    """(run, pid, name) of each process that belongs to a run in `home` whose `up` has ended."""
    import psutil

    runs = {str(folder.path): folder for folder in home.runs()}
    processes = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            command = process.info["cmdline"] or []
            folder = runs.get(_run_of(process, command))
            if folder is None or folder.locked():
                continue
            if folder.info().pid in [ancestor.pid for ancestor in process.parents()]:
                continue  # a person still looks at the monitor of a run that has ended
        except (psutil.Error, OvenError):
            continue
        processes.append((folder.run, process.pid, _process_name(command)))
    return processes


def _run_of(process: psutil.Process, command: list[str]) -> str:
    """The folder of the run that a process of a stack belongs to; empty for any other process."""
    conf = next((part for part in command if part.endswith("/nats/nats.conf")), "")
    if conf:
        return str(Path(conf).parent.parent)
    if {"oven_controller.stack.entry", "oven_runs.process.guard"} & set(command):
        return str(process.environ().get("OVEN_RUN_DIR", ""))
    return ""


def _process_name(command: list[str]) -> str:
    if "oven_controller.stack.entry" in command:
        return " ".join(command[command.index("oven_controller.stack.entry") + 1 :][:2])
    if "oven_runs.process.guard" in command:
        return "a guard"
    return Path(command[0]).name
