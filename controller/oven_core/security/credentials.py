"""Private keys for the bus: one nkey (ed25519) per name, in a file that only its owner can read."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import nkeys

from oven_core.errors import ConfigError
from oven_core.files import read_file, write_atomic


@dataclass(frozen=True)
class Credentials:
    """The private key of a role or an agent. `repr` hides `seed`, so that it is never logged."""

    name: str
    seed: bytes

    def __repr__(self) -> str:
        return f"Credentials({self.name!r})"

    @property
    def public(self) -> str:
        """The public key, in nkey text form."""
        return str(nkeys.from_seed(bytearray(self.seed)).public_key.decode())

    @classmethod
    def new(cls, name: str) -> Credentials:
        """Create a random key."""
        return cls(name, bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)))

    @classmethod
    def load(cls, path: Path) -> Credentials:
        """Read a `.nk` file. The name is the file's stem.

        Raises ConfigError for a file without a seed, and for one that other users can read."""
        seed = read_file(path, "the credentials").strip()
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise ConfigError(f"{path} has mode {mode:04o}: other users can read this key; run `chmod 600 {path}`")
        try:
            nkeys.from_seed(bytearray(seed))
        except Exception as error:
            remedy = "create one with `oven-controller creds add NAME`"
            raise ConfigError(f"{path} has no nkey seed (one line that starts with SU); {remedy}") from error
        return cls(path.stem, seed)

    @classmethod
    def from_environment(cls, variable: str = "OVEN_CREDS") -> Credentials | None:
        """Read the file that the environment variable names. Return None if it is not set. Raises ConfigError."""
        path = os.environ.get(variable)
        return cls.load(Path(path)) if path else None

    def save(self, folder: Path) -> Path:
        """Write `<folder>/<name>.nk`, readable by its owner only."""
        path = folder / f"{self.name}.nk"
        write_secret(path, self.seed + b"\n")
        folder.chmod(0o700)  # the folder may have existed with another mode
        return path


def write_secret(path: Path, data: bytes) -> None:
    """Atomically write a file that only its owner may read. A missing folder is created with the same restriction."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, data, private=True)
