"""Finds the controller, and determines whether the script requires one, from arguments or environment variables.

`oven-controller up` and `oven-controller run` set these variables.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from oven_core.errors import ConfigError
from oven_core.protocol.rules import Rules
from oven_core.security.credentials import Credentials
from oven_core.security.signing import LEARNER, Signer, load_keys
from oven_core.telemetry import tracing
from oven_learner.link.link_interface import Link
from oven_learner.link.process_link import POLL_S, ProcessLink
from oven_runs.settings.committee_settings import CommitteeSettings
from oven_runs.settings.completions import ATTACHED, CompletionsSettings

log = logging.getLogger("oven.learner")

MODE_VARIABLE = "OVEN_MODE"


class Mode(Enum):
    """Whether the script requires a controller."""

    REQUIRED = "required"
    """Raise an error if there is no controller."""
    OPTIONAL = "optional"
    """Continue without a controller if none is named. Raise an error if a named one does not answer."""
    DISABLED = "disabled"
    """Do not look for a controller."""

    @classmethod
    def from_environment(cls, optional: bool) -> Mode:
        """Return the mode from OVEN_MODE, or else from `optional`. Raises ConfigError for an unknown value."""
        value = os.environ.get(MODE_VARIABLE, "")
        if not value:
            return cls.OPTIONAL if optional else cls.REQUIRED
        try:
            return cls(value.strip().lower())
        except ValueError:
            raise ConfigError(
                f"{MODE_VARIABLE}={value!r} is invalid; unset it, or set {', '.join(mode.value for mode in cls)}"
            ) from None

    def log_absence(self) -> None:
        """Log the reason why there is no controller."""
        if self is Mode.DISABLED:
            log.warning("training continues without a controller: %s=disabled", MODE_VARIABLE)
        else:
            log.warning(
                "training continues without a controller, because OVEN_URL and OVEN_RUN are not both set; to use one, "
                "start the script with `oven-controller run -- python train.py`"
            )


class Connection(BaseModel):
    """The controller's address and credentials, and the settings that the learner needs from the run's config.json."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    url: str
    run: str
    credentials: Credentials | None = None
    keys: Mapping[str, str] = {}
    """Signer → public key; empty if the run is not signed."""
    rules: Rules = Rules(autonomy="observe")
    lockstep: bool = False
    charge_rollbacks: bool = False
    recipe: str = ATTACHED
    committee: CommitteeSettings = CommitteeSettings()
    completions: CompletionsSettings = CompletionsSettings()

    @classmethod
    def find(cls, url: str | None = None, run: str | None = None, creds: str | Path | None = None) -> Self:
        """Find the controller. Raises ConfigError if there is none, or if another learner's key signs the run."""
        url = url or os.environ.get("OVEN_URL")
        run = run or os.environ.get("OVEN_RUN")
        creds = creds or os.environ.get("OVEN_CREDS")
        if not url or not run:
            missing_variable = "OVEN_URL" if not url else "OVEN_RUN"
            raise ConfigError(
                f"there is no controller, because {missing_variable} is not set. Start this script with "
                "`oven-controller run -- python train.py`, start `oven-controller up --no-learner` and export the "
                "variables that it prints, pass url= and run=, or train without a controller: OVEN_MODE=optional"
            )
        credentials = Credentials.load(Path(creds)) if creds else None
        config = Path(os.environ.get("OVEN_RUN_DIR") or os.devnull) / "config.json"
        settings = json.loads(config.read_bytes()) if config.is_file() else {}
        address = {"url": url, "run": run, "credentials": credentials, "keys": _load_public_keys(credentials)}
        return cls.model_validate({**settings, **address})

    @property
    def shown_completions(self) -> CompletionsSettings:
        """The settings for showing completions, with `every` resolved to a number of steps."""
        every = self.completions.steps_between(attached=self.recipe == ATTACHED)
        return self.completions.model_copy(update={"every": every})

    def link(self) -> Link:
        """Return a new link to the run's log. Raises ConfigError if tracing is configured but cannot start."""
        tracing.start("learner", self.run)
        folder = Path(os.environ.get("OVEN_RUN_DIR") or os.devnull).absolute()
        return ProcessLink(
            self.url,
            self.run,
            self.credentials,
            poll_s=0.001 if self.lockstep else POLL_S,
            pin=self.keys.get(LEARNER),
            folder=folder if folder.is_dir() and folder.name == self.run else None,
            reads_machine=not self.lockstep,
        )


def find_controller(
    mode: Mode,
    url: str | None,
    run: str | None,
    creds: str | Path | None,
    *,
    leader: bool,
    broadcast: Callable[[bool], bool],
) -> tuple[bool, Connection | None]:
    """Return whether there is a controller, and on rank 0 also the connection to it. `broadcast` returns rank 0's
    argument on every rank. Raises the errors of `Connection.find`, unless the controller is optional and not named."""
    if mode is Mode.DISABLED:
        return False, None
    is_named = (url or os.environ.get("OVEN_URL")) and (run or os.environ.get("OVEN_RUN"))
    must_connect = mode is Mode.REQUIRED or bool(is_named)
    connection = Connection.find(url, run, creds) if leader and must_connect else None
    has_controller = mode is Mode.REQUIRED or broadcast(must_connect)
    return has_controller, connection


def _load_public_keys(credentials: Credentials | None) -> dict[str, str]:
    """Load the public keys. Raises ConfigError if the learner's key does not match its credentials."""
    path = os.environ.get("OVEN_KEYS")
    if not path:
        return {}
    keys = load_keys(Path(path))
    if credentials is None or keys.get(LEARNER) != Signer(credentials).public:
        raise ConfigError(
            f"the learner's key in {path} does not match {credentials!r}, so its messages would be rejected; set "
            "OVEN_CREDS to the learner.nk that was created with it"
        )
    return keys
