"""Sandbox profiles. `repl` cannot open any files, and `tests` can read and write only in permitted folders.

Landlock enforces the folders; its rights and rulesets are those of linux/landlock.h.
"""

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
"""All file rights by the first Landlock version that supports them."""
NETWORK_FROM, NETWORK = 4, 0b11
"""First version that covers TCP (bind and connect). No version covers UDP, which seccomp blocks."""
SCOPES_FROM, SCOPES = 6, 0b11
"""First version that can confine abstract unix sockets and signals."""

READ: Final = READ_FILE | READ_DIR
WRITE: Final = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
"""Write permissions, except for links, sockets, pipes and devices, which could harm a reader outside."""


def file_rights(version: int) -> int:
    """Return all file rights that a Landlock version knows. Each is refused unless a rule grants it."""
    return FILES_OF_VERSION[max(first for first in FILES_OF_VERSION if first <= version)]


def ruleset(version: int) -> bytes:
    """Return a struct landlock_ruleset_attr that handles, and so refuses, everything that the version knows."""
    words = [file_rights(version)]
    if version >= NETWORK_FROM:
        words.append(NETWORK)
    if version >= SCOPES_FROM:
        words.append(SCOPES)
    return struct.pack(f"<{len(words)}Q", *words)


STANDARD: Final = (
    "abc", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "_strptime", "decimal", "difflib", "enum", "fractions",
    "functools", "hashlib", "heapq", "html", "io", "itertools", "json", "keyword", "math", "numbers", "operator",
    "pprint", "random", "re", "reprlib", "statistics", "string", "struct", "textwrap", "time", "traceback", "types",
    "typing", "unicodedata", "urllib.parse", "uuid", "warnings", "weakref", "zlib",
)  # fmt: skip
"""Modules that are imported before the process is confined, in 30 ms. In `repl` no other can be imported."""
LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
"""Folders with the shared objects of extension modules, which `tests` may read."""
INSTALLED: Final = ("lib-dynload", "site-packages", "dist-packages")
"""Names of folders with installed modules. `tests` cannot read other folders of `sys.path`, such as the current one."""
DEVICES: Final = {"/dev/null": READ_FILE | WRITE_FILE, "/dev/urandom": READ_FILE}


@dataclass(frozen=True)
class Profile:
    """`modules` are imported before the process is confined. `read` and `write` are folders, for `tests` only."""

    name: Literal["repl", "tests"] = "repl"
    modules: tuple[str, ...] = STANDARD
    read: Path | None = None
    write: Path | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for a missing folder, and for a folder in the profile `repl`."""
        for what, folder in (("read", self.read), ("write", self.write)):
            if self.name == "repl" and folder is not None:
                raise ConfigError(f"the sandbox's profile repl has no files; omit {what}, or use the profile tests")
            if self.name == "tests" and (folder is None or not folder.is_dir()):
                raise ConfigError(f"the sandbox's profile tests needs a folder to {what}; {folder} is not a folder")

    @property
    def packages(self) -> list[str]:
        """Folders that `tests` imports from after its own: the standard library and installed packages."""
        installed = [entry for entry in sys.path if Path(entry).name in INSTALLED]
        own = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        return [path for path in dict.fromkeys([*own, *installed]) if Path(path).is_dir()]

    def grants(self, version: int) -> list[tuple[str, int]]:
        """Return (absolute path, Landlock rights under it) for everything that may be opened."""
        if self.read is None or self.write is None:
            return []
        folders = [str(self.read.resolve()), *self.packages, *LIBRARIES]
        readable = [(path, READ) for path in folders]
        grants = [*readable, (str(self.write.resolve()), WRITE), *DEVICES.items()]
        return [(path, rights & file_rights(version)) for path, rights in grants if Path(path).exists()]


REPL: Final = Profile()
