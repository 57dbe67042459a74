"""Sandbox profiles, which define the files and modules that code may use.

Code in `repl` cannot open files. Code in `tests` can read one folder and write to another. Landlock, a Linux security
module, restricts access to the folders. Its rights and rulesets are defined in linux/landlock.h."""

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
"""Landlock's file rights, one bit each."""
FILE_RIGHTS_BY_VERSION: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file rights by the first Landlock version that supports them."""
MIN_NETWORK_VERSION, NETWORK_RIGHTS = 4, 0b11
"""First version that restricts TCP, and its rights (bind and connect). Landlock does not restrict UDP; seccomp does."""
MIN_SCOPE_VERSION, SCOPES = 6, 0b11
"""First version that restricts abstract unix sockets and signals, and the bits for both."""

READ: Final = READ_FILE | READ_DIR
WRITE: Final = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
"""Rights to read and write, without creating links, sockets, pipes and devices, which could harm other processes."""


def file_rights(version: int) -> int:
    """Return all file rights that a Landlock version supports."""
    return FILE_RIGHTS_BY_VERSION[max(first for first in FILE_RIGHTS_BY_VERSION if first <= version)]


def pack_ruleset(version: int) -> bytes:
    """Return a struct landlock_ruleset_attr, which refuses each right of the version unless a rule grants it."""
    words = [file_rights(version)]
    if version >= MIN_NETWORK_VERSION:
        words.append(NETWORK_RIGHTS)
    if version >= MIN_SCOPE_VERSION:
        words.append(SCOPES)
    return struct.pack(f"<{len(words)}Q", *words)


STANDARD_MODULES: Final = (
    "abc", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "_strptime", "decimal", "difflib", "enum", "fractions",
    "functools", "hashlib", "heapq", "html", "io", "itertools", "json", "keyword", "math", "numbers", "operator",
    "pprint", "random", "re", "reprlib", "statistics", "string", "struct", "textwrap", "time", "traceback", "types",
    "typing", "unicodedata", "urllib.parse", "uuid", "warnings", "weakref", "zlib",
)  # fmt: skip
"""Modules that are imported before the process is confined, which takes 30 ms. Code in `repl` can use no others."""
LIBRARY_FOLDERS: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
"""Folders with shared libraries for extension modules, which code in `tests` may read."""
PACKAGE_FOLDER_NAMES: Final = ("lib-dynload", "site-packages", "dist-packages")
"""Names of folders with installed modules. Code in `tests` cannot read other folders of `sys.path`."""
DEVICE_RIGHTS: Final = {"/dev/null": READ_FILE | WRITE_FILE, "/dev/urandom": READ_FILE}


@dataclass(frozen=True)
class Profile:
    """A profile. `modules` are imported before the process is confined. Only `tests` has folders to read and write."""

    name: Literal["repl", "tests"] = "repl"
    modules: tuple[str, ...] = STANDARD_MODULES
    read: Path | None = None
    write: Path | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a missing folder, and for a folder in the profile `repl`."""
        for field, folder in (("read", self.read), ("write", self.write)):
            if self.name == "repl" and folder is not None:
                raise ConfigError(f"the sandbox profile repl cannot use files; omit {field}, or use the profile tests")
            if self.name == "tests" and (folder is None or not folder.is_dir()):
                raise ConfigError(f"the sandbox profile tests requires a folder for {field}; {folder} is not a folder")

    @property
    def package_folders(self) -> list[str]:
        """Folders with the standard library and installed packages, which `tests` searches after its own folder."""
        installed = [entry for entry in sys.path if Path(entry).name in PACKAGE_FOLDER_NAMES]
        standard = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        return [path for path in dict.fromkeys([*standard, *installed]) if Path(path).is_dir()]

    def grants(self, version: int) -> list[tuple[str, int]]:
        """Return the absolute paths that may be opened, each with its Landlock rights."""
        if self.read is None or self.write is None:
            return []
        folders = [str(self.read.resolve()), *self.package_folders, *LIBRARY_FOLDERS]
        readable = [(path, READ) for path in folders]
        rights_by_path = [*readable, (str(self.write.resolve()), WRITE), *DEVICE_RIGHTS.items()]
        return [(path, rights & file_rights(version)) for path, rights in rights_by_path if Path(path).exists()]


REPL: Final = Profile()
