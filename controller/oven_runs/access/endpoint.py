"""The address and key of a run on another machine, from command-line options or the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, a key and a certificate authority. Without address and key, the run is on this machine."""

    url: str = ""
    """One server, or the servers of a cluster, separated by commas."""
    creds: Path | None = None
    """A user's credential file, or a file with an nkey seed."""
    tls_ca: Path | None = None
    """PEM file of the authority that signed the server's certificate."""
    run: str = ""
    """The run's name, from the environment."""
    pin: str = ""
    """The learner's public key, from the environment."""
    source: str = "--nats and --creds"
    """Where the values come from, for error messages."""

    @property
    def is_remote(self) -> bool:
        """Whether the run is on another machine."""
        return bool(self.url or self.creds is not None)

    def arguments(self) -> list[str]:
        """Return the endpoint as command-line options."""
        options = {"--nats": self.url, "--creds": self.creds, "--tls-ca": self.tls_ca}
        return [part for option, value in options.items() if value for part in (option, str(value))]

    def with_environment(self, environment: Mapping[str, str] = os.environ) -> Endpoint:
        """Return the endpoint with missing values from the environment. A process of the stack has OVEN_RUN_DIR set, so
        its local endpoint is returned unchanged."""
        if not self.is_remote and environment.get("OVEN_RUN_DIR"):
            return self
        creds, ca = environment.get("OVEN_CREDS"), environment.get("OVEN_TLS_CA")
        return Endpoint(
            self.url or environment.get("OVEN_URL", ""),
            self.creds or (Path(creds) if creds else None),
            self.tls_ca or (Path(ca) if ca else None),
            environment.get("OVEN_RUN", ""),
            environment.get("OVEN_LEARNER_KEY", ""),
            self.source if self.is_remote else "OVEN_URL and OVEN_CREDS",
        )
