"""Where the controller is, and whether a script needs one: from arguments, else from the environment that
`oven-controller up` and `run` hand over."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from oven_core.errors import ConfigError
from oven_core.protocol.rules import Rules
from oven_core.security.credentials import Credentials
from oven_core.security.signing import LEARNER, Signer, load_keys
from oven_core.telemetry import tracing
from oven_learner.link.link_interface import Link
from oven_learner.link.process_link import POLL_S, ProcessLink
from oven_runs.settings.committee_settings import CommitteeSettings
from oven_runs.settings.completions import CompletionsSettings
from oven_runs.settings.model import ATTACHED

log = logging.getLogger("oven.learner")

VARIABLE = "OVEN_MODE"


class Mode(Enum):
    REQUIRED = "required"
    """Without a controller it is an error."""
    OPTIONAL = "optional"
    """Without one training continues as if no one had asked. One that is named and does not answer is an error."""
    DISABLED = "disabled"
    """None is looked for."""

    @classmethod
    def of(cls, optional: bool) -> Mode:
        """The environment's word goes before the script's. Raises ConfigError for a word that is none."""
        word = os.environ.get(VARIABLE, "")
        if not word:
            return cls.OPTIONAL if optional else cls.REQUIRED
        try:
            return cls(word.strip().lower())
        except ValueError:
            raise ConfigError(
                f"{VARIABLE}={word!r} is none of {', '.join(mode.value for mode in cls)}; unset it, or set one of them"
            ) from None

    def log_absence(self) -> None:
        """One line, where nothing is plugged in."""
        if self is Mode.DISABLED:
            log.warning("training continues without a controller: %s=disabled", VARIABLE)
        else:
            log.warning(
                "training continues without a controller: none was found (OVEN_URL and OVEN_RUN are not both set); "
                "start it with `oven-controller run -- python train.py` to have one"
            )


@dataclass(frozen=True)
class Connection:
    url: str
    run: str
    credentials: Credentials | None
    rules: Rules
    lockstep: bool = False
    charge_rollbacks: bool = False
    committee: CommitteeSettings = field(default_factory=CommitteeSettings)
    completions: CompletionsSettings = field(default_factory=lambda: CompletionsSettings(every=0))
    """With `every` as a number."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Who signs → public key; empty: the run is not signed."""

    @classmethod
    def find(cls, url: str | None = None, run: str | None = None, creds: str | Path | None = None) -> Connection:
        """Raises ConfigError, with the three ways to have a stack, when there is none; and when the run is signed, and
        by another learner than the one whose key this is."""
        url = url or os.environ.get("OVEN_URL")
        run = run or os.environ.get("OVEN_RUN")
        creds = creds or os.environ.get("OVEN_CREDS")
        if not url or not run:
            missing = "OVEN_URL" if not url else "OVEN_RUN"
            raise ConfigError(
                f"no controller to attach to: {missing} is not set. Start this script with `oven-controller run -- "
                "python train.py`; or start `oven-controller up --no-learner` and export what it prints; "
                "or pass url= and run=; or train without one: OVEN_MODE=optional"
            )
        rules, lockstep, committee = Rules(autonomy="observe"), False, CommitteeSettings()
        charge_rollbacks, completions = False, CompletionsSettings(every=0)
        folder = os.environ.get("OVEN_RUN_DIR")
        if folder and (config := Path(folder) / "config.json").is_file():
            resolved = json.loads(config.read_text())
            rules = Rules.model_validate(resolved.get("rules", {"autonomy": "observe"}))
            lockstep = bool(resolved.get("lockstep", False))
            charge_rollbacks = bool(resolved.get("charge_rollbacks", False))
            committee = CommitteeSettings.model_validate(resolved.get("committee", {}))
            given = CompletionsSettings.model_validate(resolved.get("completions", {}))
            every = given.steps_between(attached=resolved.get("recipe", ATTACHED) == ATTACHED)
            completions = given.model_copy(update={"every": every})
        credentials = Credentials.load(Path(creds)) if creds else None
        keys = _keys(credentials)
        return cls(url, run, credentials, rules, lockstep, charge_rollbacks, committee, completions, keys)

    def link(self) -> Link:
        """Raises ConfigError when traces are wanted and cannot be made."""
        tracing.start("learner", self.run)
        poll_s = 0.001 if self.lockstep else POLL_S
        folder = Path(os.environ.get("OVEN_RUN_DIR") or os.devnull).absolute()
        mine = folder if folder.is_dir() and folder.name == self.run else None
        return ProcessLink(
            self.url,
            self.run,
            self.credentials,
            poll_s=poll_s,
            pin=self.keys.get(LEARNER),
            folder=mine,
            machine=not self.lockstep,
        )


def seek(
    mode: Mode,
    url: str | None,
    run: str | None,
    creds: str | Path | None,
    *,
    leader: bool,
    same: Callable[[bool], bool],
) -> tuple[bool, Connection | None]:
    """Whether there is a controller, on every rank; and on rank 0, which speaks to it, where. Raises ConfigError as
    `find` does, unless it is optional and none is named. `same` gives rank 0's word on every rank."""
    if mode is Mode.DISABLED:
        return False, None
    named = (url or os.environ.get("OVEN_URL")) and (run or os.environ.get("OVEN_RUN"))
    wanted = mode is Mode.REQUIRED or bool(named)
    connection = Connection.find(url, run, creds) if leader and wanted else None
    return mode is Mode.REQUIRED or same(wanted), connection


def _keys(credentials: Credentials | None) -> dict[str, str]:
    path = os.environ.get("OVEN_KEYS")
    if not path:
        return {}
    keys = load_keys(Path(path))
    if credentials is None or keys.get(LEARNER) != Signer(credentials).public:
        raise ConfigError(
            f"{path} names another learner's key than that of {credentials!r}, so no one would believe this one; set "
            "OVEN_CREDS to the learner.nk that was made with it"
        )
    return keys
