"""Detects the sandbox backends available on this machine. It queries the kernel without starting a process."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from oven_core.errors import ConfigError
from oven_llm.sandbox.bpf import ERRNO, MACHINES, Machine

Backend = Literal["landlock+seccomp", "seccomp", "monty"]
BACKENDS: Final[tuple[Backend, ...]] = ("landlock+seccomp", "seccomp", "monty")
"""Strongest first."""
EXTRA: Final = "monty"

SECCOMP_GET_ACTION_AVAIL, LANDLOCK_CREATE_RULESET_VERSION = 2, 1


@dataclass(frozen=True)
class Support:
    """The sandbox features of this machine."""

    machine: Machine | None
    """The machine; None if there is no table of its system calls."""
    landlock: int
    """Landlock's version, 0 if there is none."""
    seccomp: bool
    monty: bool

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Return the backends that can start here, strongest first."""
        available = {
            "landlock+seccomp": self.seccomp and self.landlock > 0,
            "seccomp": self.seccomp,
            "monty": self.monty,
        }
        return tuple(name for name in BACKENDS if available[name])


def probe() -> Support:
    """Return what this machine supports."""
    monty = importlib.util.find_spec("pydantic_monty") is not None and _has_binary()
    machine = MACHINES.get(platform.machine()) if sys.platform == "linux" and sys.byteorder == "little" else None
    if machine is None or struct.calcsize("P") != 8:
        return Support(None, 0, False, monty)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    number = {name: ctypes.c_long(machine.numbers[name]) for name in ("seccomp", "landlock_create_ruleset")}
    action = ctypes.c_uint32(ERRNO)
    seccomp = syscall(number["seccomp"], SECCOMP_GET_ACTION_AVAIL, 0, ctypes.byref(action)) == 0
    none, length = ctypes.c_void_p(None), ctypes.c_size_t(0)
    version = syscall(number["landlock_create_ruleset"], none, length, LANDLOCK_CREATE_RULESET_VERSION)
    return Support(machine, max(0, int(version)), seccomp, monty)


def _has_binary() -> bool:
    """Return whether the package can find its worker's program."""
    sibling = Path(sys.executable).with_name("monty")
    return "MONTY_BIN" in os.environ or sibling.exists() or shutil.which("monty") is not None


def choose(support: Support, requested: str | None, profile: str) -> Backend:
    """Return the requested backend, or the strongest one for the profile. Raises ConfigError if there is none: a
    model's code is run confined or not at all."""
    if requested is not None and requested not in BACKENDS:
        raise ConfigError(f"the sandbox has no backend {requested!r}; known: {', '.join(BACKENDS)}")
    if profile == "tests":
        if requested not in (None, "landlock+seccomp") or "landlock+seccomp" not in support.backends:
            raise ConfigError(
                "the sandbox's profile tests needs Landlock and seccomp, which Linux has since 5.13; without them it "
                "cannot restrict access to folders"
            )
        return "landlock+seccomp"
    if requested is None and support.backends:
        return support.backends[0]
    for name in support.backends:
        if name == requested:
            return name
    raise ConfigError(
        f"the sandbox does not start: this machine has no {requested or 'seccomp'}, and a model's code is not run "
        f'unconfined; use Linux on x86_64 or aarch64, or pip install "oven-controller[{EXTRA}]"'
    )
