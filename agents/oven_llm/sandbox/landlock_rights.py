"""Landlock's rights and rulesets (linux/landlock.h), by the version that the kernel has: pure."""

from __future__ import annotations

import struct
from typing import Final

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << n for n in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << n for n in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = (1 << n for n in range(13, 16))

FILES_OF_VERSION: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""First version → every right about files that it knows."""
NETWORK_FROM, NETWORK = 4, 0b11
"""Version from which TCP is covered: bind and connect. UDP is not: seccomp is the wall there."""
SCOPES_FROM, SCOPES = 6, 0b11
"""Version from which abstract unix sockets and signals can be kept inside."""

READ: Final = READ_FILE | READ_DIR
WRITE: Final = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
"""Without links, sockets, pipes and devices: what a reader on the outside could trip over."""


def files(version: int) -> int:
    """All rights about files of a kernel with this version; each is refused unless a rule grants it."""
    return FILES_OF_VERSION[max(first for first in FILES_OF_VERSION if first <= version)]


def ruleset(version: int) -> bytes:
    """struct landlock_ruleset_attr that handles, and so refuses, everything that the version knows."""
    words = [files(version)]
    if version >= NETWORK_FROM:
        words.append(NETWORK)
    if version >= SCOPES_FROM:
        words.append(SCOPES)
    return struct.pack(f"<{len(words)}Q", *words)


def beneath(version: int, rights: int) -> int:
    """The rights that a rule may grant under a folder: those that the version knows."""
    return rights & files(version)
