"""Which walls this machine has: asked of the kernel, without starting anything."""

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
"""The strongest first."""
EXTRA: Final = "monty"

SECCOMP_GET_ACTION_AVAIL, LANDLOCK_CREATE_RULESET_VERSION = 2, 1


@dataclass(frozen=True)
class Walls:
    """`machine` None: no table of its system calls. `landlock`: its version, or 0."""

    machine: Machine | None
    landlock: int
    seccomp: bool
    monty: bool

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Those that would start here, the strongest first."""
        there = {"landlock+seccomp": self.seccomp and self.landlock > 0, "seccomp": self.seccomp, "monty": self.monty}
        return tuple(name for name in BACKENDS if there[name])


def probe() -> Walls:
    monty = importlib.util.find_spec("pydantic_monty") is not None and _has_binary()
    machine = MACHINES.get(platform.machine()) if sys.platform == "linux" and sys.byteorder == "little" else None
    if machine is None or struct.calcsize("P") != 8:
        return Walls(None, 0, False, monty)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    number = {name: ctypes.c_long(machine.numbers[name]) for name in ("seccomp", "landlock_create_ruleset")}
    action = ctypes.c_uint32(ERRNO)
    seccomp = syscall(number["seccomp"], SECCOMP_GET_ACTION_AVAIL, 0, ctypes.byref(action)) == 0
    none, length = ctypes.c_void_p(None), ctypes.c_size_t(0)
    version = syscall(number["landlock_create_ruleset"], none, length, LANDLOCK_CREATE_RULESET_VERSION)
    return Walls(machine, max(0, int(version)), seccomp, monty)


def _has_binary() -> bool:
    """Where the package looks for its worker's program."""
    beside = Path(sys.executable).with_name("monty")
    return "MONTY_BIN" in os.environ or beside.exists() or shutil.which("monty") is not None


def choose(walls: Walls, wanted: str | None, profile: str) -> Backend:
    """The backend for a profile: the one that is wanted, or the strongest. Raises ConfigError where there is none: code
    of a model's is run behind walls or not at all."""
    if wanted is not None and wanted not in BACKENDS:
        raise ConfigError(f"no backend of the sandbox is named {wanted!r}; known: {', '.join(BACKENDS)}")
    if profile == "tests":
        if wanted not in (None, "landlock+seccomp") or "landlock+seccomp" not in walls.backends:
            raise ConfigError(
                "the sandbox's profile tests needs Landlock and seccomp, which Linux has from 5.13; without them it "
                "cannot tell one folder from another"
            )
        return "landlock+seccomp"
    if wanted is None and walls.backends:
        return walls.backends[0]
    for name in walls.backends:
        if name == wanted:
            return name
    raise ConfigError(
        f"the sandbox does not start: this machine has no {wanted or 'seccomp'}, and code of a model's is not run "
        f'without walls; use Linux on x86_64 or aarch64, or pip install "oven-controller[{EXTRA}]"'
    )
