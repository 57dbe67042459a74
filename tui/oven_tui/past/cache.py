"""The cache of a fold beside its log: `fold.cache` in the run's folder, for a log that is opened again.

It holds for the bytes that were folded, by their length and BLAKE2b, which are compared before it is shown: the same
bytes were checked before, so what it shows is checked. It holds for this code, by a hash over the modules that fold. It
is a pickle, which runs what it says, so it is believed only with a MAC under a key of this user's in the home's cache.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
import platform
import secrets
import zlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import oven_core
import oven_runs
import oven_tui
from oven_core.errors import ConfigError
from oven_core.files import write_atomic
from oven_runs.home.run_folder import RunFolder
from oven_tui.past.fold import Fold, digest_of

NAME: Final = "fold.cache"
KEY: Final = "fold.key"
FORMAT: Final = 1
MAC_BYTES: Final = 32


def load(folder: RunFolder, look: Callable[[], object] = lambda: None) -> tuple[Fold, hashlib.blake2b] | None:
    """The fold of the log's first bytes, with their digest to continue from; None where there is none that holds."""
    try:
        data = (folder.path / NAME).read_bytes()
        mac, rest = data[:MAC_BYTES], data[MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac(_key(folder, make=False), rest)):
            return None
        head, _, blob = rest.partition(b"\n")
        about = json.loads(head)
        if about["code"] != code() or about["run"] != folder.run or about["pin"] != (folder.pin() or ""):
            return None
        if folder.export.stat().st_size < about["length"]:
            return None
        digest = digest_of(folder, about["length"], look)
        if digest.hexdigest() != about["digest"]:
            return None
        fold = pickle.loads(zlib.decompress(blob))
    except (OSError, ValueError, KeyError, ConfigError, zlib.error, pickle.PickleError, AttributeError):
        return None
    return (fold, digest) if isinstance(fold, Fold) else None


def save(folder: RunFolder, fold: Fold, digest: hashlib.blake2b) -> None:
    """Keep it. A folder that cannot be written to keeps none."""
    about = {"format": FORMAT, "code": code(), "run": folder.run, "pin": folder.pin() or ""}
    about |= {"length": fold.offset, "digest": digest.hexdigest()}
    rest = json.dumps(about).encode() + b"\n" + zlib.compress(pickle.dumps(fold, 5), 1)
    try:
        write_atomic(folder.path / NAME, _mac(_key(folder, make=True), rest) + rest, private=True)
    except (OSError, ConfigError):
        return


def _mac(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=MAC_BYTES, person=b"oven-fold").digest()


def _key(folder: RunFolder, *, make: bool) -> bytes:
    """The user's, 32 bytes, readable by its owner only. Raises OSError and ConfigError."""
    path = folder.path.parent.parent / "cache" / KEY
    if make and not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, secrets.token_hex(32), private=True)
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} can be read by others: remove it")
    return bytes.fromhex(path.read_text().strip())


@cache
def code() -> str:
    """A hash over what a fold depends on: the modules that read, check and fold, Python and pydantic."""
    digest = hashlib.blake2b(f"{FORMAT} {platform.python_version()} {version('pydantic')}".encode(), digest_size=16)
    core, runs, tui = (Path(str(package.__file__)).parent for package in (oven_core, oven_runs, oven_tui))
    for part in (core / "protocol", runs / "log", core / "security", tui / "model", tui / "past"):
        for path in sorted(part.glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
