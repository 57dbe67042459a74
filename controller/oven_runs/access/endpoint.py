"""Where a run is reached from another machine: options of the command line, or the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, a key and an authority, as far as they were given; none of them: the run is on this machine."""

    url: str = ""
    """One server, or a cluster's separated by commas."""
    creds: Path | None = None
    """A person's credential file, or an nkey seed."""
    tls_ca: Path | None = None
    """The authority of the server's certificate, PEM."""
    run: str = ""
    """The run's name, from the environment."""
    pin: str = ""
    """The learner's public key, from the environment."""
    source: str = "--nats and --creds"
    """Where it is from, for messages."""

    @property
    def named(self) -> bool:
        """Whether a run elsewhere is meant."""
        return bool(self.url or self.creds is not None)

    def arguments(self) -> list[str]:
        """As options of a command."""
        given = {"--nats": self.url, "--creds": self.creds, "--tls-ca": self.tls_ca}
        return [part for option, value in given.items() if value for part in (option, str(value))]

    def completed(self, environment: Mapping[str, str] = os.environ) -> Endpoint:
        """With what the environment says of the rest. What the stack starts has its run's folder (OVEN_RUN_DIR), and
        reads that."""
        if not self.named and environment.get("OVEN_RUN_DIR"):
            return self
        creds, ca = environment.get("OVEN_CREDS"), environment.get("OVEN_TLS_CA")
        return Endpoint(
            self.url or environment.get("OVEN_URL", ""),
            self.creds or (Path(creds) if creds else None),
            self.tls_ca or (Path(ca) if ca else None),
            environment.get("OVEN_RUN", ""),
            environment.get("OVEN_LEARNER_KEY", ""),
            self.source if self.named else "OVEN_URL and OVEN_CREDS",
        )
