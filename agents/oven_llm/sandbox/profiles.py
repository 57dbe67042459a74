"""What code in the sandbox may reach: `repl` nothing, `tests` one folder to read and one to write."""

from __future__ import annotations

import struct
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from oven_core.errors import ConfigError

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


STANDARD: Final = (
    "abc", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "_strptime", "decimal", "difflib", "enum", "fractions",
    "functools", "hashlib", "heapq", "html", "io", "itertools", "json", "keyword", "math", "numbers", "operator",
    "pprint", "random", "re", "reprlib", "statistics", "string", "struct", "textwrap", "time", "traceback", "types",
    "typing", "unicodedata", "urllib.parse", "uuid", "warnings", "weakref", "zlib",
)  # fmt: skip
"""Modules that are imported before the walls go up; in `repl` no other can be. They take some 30 ms."""
LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
"""Where shared objects of extension modules are: `tests` may read them."""
INSTALLED: Final = ("lib-dynload", "site-packages", "dist-packages")
"""Names of folders with installed modules. Other folders of `sys.path`, such as the present one, stay closed."""
DEVICES: Final = {"/dev/null": READ_FILE | WRITE_FILE, "/dev/urandom": READ_FILE}


@dataclass(frozen=True)
class Profile:
    """`modules`: what is imported beforehand. `read` and `write`: folders, for `tests` alone."""

    name: Literal["repl", "tests"] = "repl"
    modules: tuple[str, ...] = STANDARD
    read: Path | None = None
    write: Path | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for a folder that is not there, or that the profile does not take."""
        for what, folder in (("read", self.read), ("write", self.write)):
            if self.name == "repl" and folder is not None:
                raise ConfigError(f"the sandbox's profile repl has no files; leave {what} out, or take tests")
            if self.name == "tests" and (folder is None or not folder.is_dir()):
                raise ConfigError(f"the sandbox's profile tests needs a folder to {what}; {folder} is not one")

    @property
    def packages(self) -> list[str]:
        """Where `tests` imports from, after the folder itself: Python's own modules and what is installed."""
        installed = [entry for entry in sys.path if Path(entry).name in INSTALLED]
        own = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        return [path for path in dict.fromkeys([*own, *installed]) if Path(path).is_dir()]

    def grants(self, version: int) -> list[tuple[str, int]]:
        """(absolute path, Landlock's rights under it) of all that may be opened. The rest may not."""
        if self.read is None or self.write is None:
            return []
        folders = [str(self.read.resolve()), *self.packages, *LIBRARIES]
        reading = [(path, READ) for path in folders]
        found = [*reading, (str(self.write.resolve()), WRITE), *DEVICES.items()]
        return [(path, beneath(version, rights)) for path, rights in found if Path(path).exists()]


REPL: Final = Profile()


def for_tests(read: Path, write: Path) -> Profile:
    """For running someone's tests: code from `read`, results in `write`. Raises ConfigError."""
    return Profile("tests", read=read, write=write)
