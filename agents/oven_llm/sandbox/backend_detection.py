"""Detects the sandbox backends that this machine supports, by querying the kernel."""

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
"""All backends, strongest first."""
MONTY_EXTRA: Final = "monty"  # oven-controller's extra that installs the backend monty

SECCOMP_GET_ACTION_AVAIL, LANDLOCK_CREATE_RULESET_VERSION = 2, 1


@dataclass(frozen=True)
class Support:
    """The sandbox features of this machine."""

    machine: Machine | None
    """The machine; None if its system calls are unknown."""
    landlock_version: int
    """The kernel's version of Landlock; 0 without Landlock."""
    has_seccomp: bool
    has_monty: bool

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends that work on this machine, strongest first."""
        available = {
            "landlock+seccomp": self.has_seccomp and self.landlock_version > 0,
            "seccomp": self.has_seccomp,
            "monty": self.has_monty,
        }
        return tuple(name for name in BACKENDS if available[name])


def detect_support() -> Support:
    """Query the kernel and the installed packages for sandbox features."""
    has_monty = importlib.util.find_spec("pydantic_monty") is not None and _has_monty_binary()
    machine = MACHINES.get(platform.machine()) if sys.platform == "linux" and sys.byteorder == "little" else None
    if machine is None or struct.calcsize("P") != 8:  # a 32-bit Python makes other system calls
        return Support(None, 0, False, has_monty)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    numbers = {name: ctypes.c_long(machine.numbers[name]) for name in ("seccomp", "landlock_create_ruleset")}
    action = ctypes.c_uint32(ERRNO)
    has_seccomp = syscall(numbers["seccomp"], SECCOMP_GET_ACTION_AVAIL, 0, ctypes.byref(action)) == 0
    null, length = ctypes.c_void_p(None), ctypes.c_size_t(0)
    version = syscall(numbers["landlock_create_ruleset"], null, length, LANDLOCK_CREATE_RULESET_VERSION)
    return Support(machine, max(0, int(version)), has_seccomp, has_monty)


def _has_monty_binary() -> bool:
    """Return whether pydantic-monty can find its worker's binary."""
    sibling = Path(sys.executable).with_name("monty")
    return "MONTY_BIN" in os.environ or sibling.exists() or shutil.which("monty") is not None


def choose_backend(support: Support, requested: str | None, profile: str) -> Backend:
    """Return the requested backend, or the strongest one for the profile. Raises ConfigError if there is none."""
    if requested is not None and requested not in BACKENDS:
        raise ConfigError(f"unknown sandbox backend {requested!r}; known backends: {', '.join(BACKENDS)}")
    if profile == "tests":
        if requested not in (None, "landlock+seccomp") or "landlock+seccomp" not in support.backends:
            raise ConfigError(
                "the sandbox profile tests requires Landlock and seccomp to restrict access to folders; use Linux 5.13 "
                "or later"
            )
        return "landlock+seccomp"
    if requested is None and support.backends:
        return support.backends[0]
    for name in support.backends:
        if name == requested:
            return name
    raise ConfigError(
        f"cannot start the sandbox: this machine does not support {requested or 'seccomp'}, and a model's code must "
        f'not run unconfined; use Linux on x86_64 or aarch64, or pip install "oven-controller[{MONTY_EXTRA}]"'
    )
