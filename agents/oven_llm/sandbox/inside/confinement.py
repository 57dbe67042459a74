"""Confines this process with resource limits, Landlock and seccomp, drops its capabilities, and tests the result.

The restrictions cannot be undone. The host builds the rules, and this module passes them to the kernel with ctypes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
from typing import Any, Final

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC = 1, 1
LANDLOCK_RULE_PATH_BENEATH: Final = 1
BYTES_PER_INSTRUCTION: Final = 8
F_SETSIG: Final = 10
CAPABILITY_VERSION: Final = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3 (linux/capability.h)."""
NO_CAPABILITIES: Final = bytes(24)
"""Empty sets of effective, permitted and inheritable capabilities, with two 32-bit words each."""
AF_INET, SOCK_DGRAM = 2, 2
AT_FDCWD: Final = -100


class ConfinementError(Exception):
    """A restriction could not be set or has no effect."""


class _FilterProgram(ctypes.Structure):
    """The C structure sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class Kernel:
    """Makes system calls by name. The host supplies their numbers."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self._numbers = numbers
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long

    def call(self, name: str, *arguments: Any) -> int:
        """Make a system call. Raises OSError."""
        words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
        result = int(self._libc.syscall(ctypes.c_long(self._numbers[name]), *words))
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return result

    def prctl(self, option: int, value: int) -> None:
        zero = ctypes.c_ulong(0)
        if self._libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero):
            raise OSError(ctypes.get_errno(), f"prctl {option}")


def die_with_host(lifeline: int) -> None:
    """Have the kernel kill this process when the host closes the other end of the pipe `lifeline`."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def limit_resources(limits: dict[str, int]) -> None:
    """Set the soft and hard limits of resources, which are named without RLIMIT_. Hard limits are never raised."""
    for name, value in limits.items():
        resource_id = getattr(resource, f"RLIMIT_{name}")
        _, hard_limit = resource.getrlimit(resource_id)
        limit = value if hard_limit == resource.RLIM_INFINITY else min(value, hard_limit)
        resource.setrlimit(resource_id, (limit, limit))


def confine(kernel: Kernel, landlock: dict[str, Any] | None, program: bytes) -> None:
    """Drop capabilities, and apply the Landlock rules and the seccomp program. Raises ConfinementError."""
    if (thread_count := len(os.listdir("/proc/self/task"))) != 1:
        raise ConfinementError(f"{thread_count} threads are running; a module of the profile started them")
    try:
        kernel.prctl(PR_SET_DUMPABLE, 0)
        kernel.call("capset", struct.pack("<Ii", CAPABILITY_VERSION, 0), NO_CAPABILITIES)
        kernel.prctl(PR_SET_NO_NEW_PRIVS, 1)
        if landlock is not None:
            _restrict_paths(kernel, bytes.fromhex(landlock["ruleset"]), landlock["grants"])
        buffer = ctypes.create_string_buffer(program, len(program))
        filter_program = _FilterProgram(len(program) // BYTES_PER_INSTRUCTION, ctypes.cast(buffer, ctypes.c_void_p))
        kernel.call("seccomp", SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, ctypes.byref(filter_program))
    except OSError as error:
        raise ConfinementError(f"the kernel refused a restriction: {error.strerror}") from None


def _restrict_paths(kernel: Kernel, ruleset: bytes, grants: list[tuple[str, int]]) -> None:
    ruleset_fd = kernel.call("landlock_create_ruleset", ruleset, len(ruleset), 0)
    for path, rights in grants:
        path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        kernel.call("landlock_add_rule", ruleset_fd, LANDLOCK_RULE_PATH_BENEATH, struct.pack("<Qi", rights, path_fd), 0)
        os.close(path_fd)
    kernel.call("landlock_restrict_self", ruleset_fd, 0)
    os.close(ruleset_fd)


def check_restrictions(kernel: Kernel) -> None:
    """Make calls that must fail now, because a kernel may ignore a filter. Raises ConfinementError if one succeeds."""
    attempts: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("openat", (AT_FDCWD, b"/etc", os.O_RDONLY, 0)),
        ("openat", (AT_FDCWD, b"/proc/self/mem", os.O_RDWR, 0)),
        ("socket", (AF_INET, SOCK_DGRAM, 0)),
        ("execve", (None, None, None)),
        ("kill", (os.getpid(), 0)),
        ("ptrace", (0, 0, 0, 0)),
    )
    for name, arguments in attempts:
        try:
            kernel.call(name, *arguments)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES):
                continue
        raise ConfinementError(f"the system call {name} still works in the sandbox")
