"""A person's credential file, with everything needed to reach one run from another machine.

It contains the run and its address, the person's private key, the public keys that verify the log, and the authority of
the server's certificate. `creds add NAME --operator` or `--read-only` writes it, with mode 0600.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final, Literal

import nkeys
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file
from oven_core.protocol import names
from oven_core.security.credentials import Credentials, write_secret
from oven_core.security.signing import decode_public_key

MAX_FILE_BYTES: Final = 256 << 10
"""Maximum bytes of the file. An authority with its chain takes a few kilobytes, and a public key 50 bytes."""
PersonRole = Literal["operator", "monitor"]
"""The role of a person. An operator reads and sends commands. A monitor only reads."""


class PersonFile(BaseModel):
    """The content of the file. Its `repr` omits the seed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    run: str
    name: str
    role: PersonRole
    url: str = Field(description="address of the server; empty: the user provides it")
    seed: str = Field(repr=False)
    keys: dict[str, str] = Field(default_factory=dict, description="signer → public key; empty: the run is unsigned")
    tls_ca: str = Field(default="", description="the authority to trust, as PEM; empty: those of the system")

    @field_validator("run", "name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return names.validate("name", name)

    @field_validator("seed")
    @classmethod
    def _check_seed(cls, seed: str) -> str:
        try:
            nkeys.from_seed(bytearray(seed.encode()))
        except Exception:
            raise ValueError("it is not an nkey seed") from None
        return seed

    @field_validator("keys")
    @classmethod
    def _check_keys(cls, keys: dict[str, str]) -> dict[str, str]:
        for key in keys.values():
            decode_public_key(key)
        return keys

    @property
    def credentials(self) -> Credentials:
        """The key that identifies the person to the server."""
        return Credentials(self.name, self.seed.encode())

    def save(self, path: Path) -> None:
        """Write the file, readable by its owner only. Raises OSError."""
        write_secret(path, (self.model_dump_json(indent=1) + "\n").encode())


def load(path: Path) -> PersonFile | Credentials:
    """Read the file that --creds names, which is a person's credential file or an nkey seed (`.nk`).

    Raises ConfigError for any other file, and for one that other users can read."""
    data = read_file(path, "the credentials", MAX_FILE_BYTES).strip()
    if not data.startswith(b"{"):
        return Credentials.load(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(f"{path} has mode {mode:04o}: other users can read this key; run `chmod 600 {path}`")
    try:
        return PersonFile.model_validate_json(data)
    except ValidationError as error:
        raise ConfigError(
            f"{path} is not a credential file ({reason(error)}); `oven-controller creds add NAME --operator` on the "
            "run's machine writes one"
        ) from None
