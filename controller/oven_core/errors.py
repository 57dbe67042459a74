"""Every error that this project raises on purpose.

OvenError
├── ConfigError      (ValueError)       a setting is wrong; names the value and the remedy; exit code 2
│   ├── NameInUseError                  the run name is taken
│   └── TeacherRefusedError             a model cannot teach this policy: too large, or another vocabulary
├── UnknownNameError (LookupError)      no such recipe, agent, run, …; names the nearest; exit code 2
├── BusError         (ConnectionError)  the bus cannot be used; exit code 3
│   └── RefusedError                    the server turned the credentials down; exit code 2
├── StoreInUseError  (RuntimeError)     another process holds the run's store; exit code 2
├── ProcessError     (RuntimeError)     a process of the stack did not start or died; exit code 3
└── DivergedError    (RuntimeError)     the log contradicts this mesh replica; exit code 3
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Mapping
from typing import Final

from oven_core.removed import removal

RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "agent": {
        "auxiliary": "auxiliary_loss",
        "calibration": "entropy_collapse",
        "committee": "reward_weights",
        "data": "repeated_data",
        "decay": "weight_decay",
        "gradients": "grad_clip",
        "hacking": "reward_hacking",
        "late": "lr_cooldown",
        "lr": "learning_rate",
        "relapse": "best_checkpoint",
        "sentinel": "divergence",
        "undo": "rollback_undo",
    }
}
"""By what is looked for: an earlier name → today's, for the error that names the nearest. None of them is accepted."""


NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Of an OSError: a full disk, a quota, a limit on a file's size, a disk that takes nothing."""


class OvenError(Exception):
    """Base of all; `exit_code` is what the command line ends with."""

    exit_code = 3


class ConfigError(OvenError, ValueError):
    exit_code = 2


class NameInUseError(ConfigError):
    pass


class TeacherRefusedError(ConfigError):
    pass


class UnknownNameError(OvenError, LookupError):
    exit_code = 2

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """`kind` is what was looked for ("recipe"), `known` the names that would have done. A name in the table of
        `oven_core.removed` gets the sentence that names the tag with it."""
        known = sorted(known)
        earlier = {old: new for old, new in RENAMED.get(kind.split()[0], {}).items() if new in known}
        spelt = earlier | {one: one for one in known}
        close = [name] if name in earlier else difflib.get_close_matches(name, spelt, n=3, cutoff=0.4)
        near = list(dict.fromkeys(spelt[one] for one in close))
        if near:
            hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
        elif known:
            hint = "known: " + ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
        else:
            hint = f"there is no {kind} yet"
        super().__init__(removal(kind, name) or f"no {kind} named {name!r}; {hint}")
        self.name = name
        self._made_of = (kind, name, known)

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str, str, list[str]]]:
        """It comes out of worker processes, too."""
        return type(self), self._made_of


class BusError(OvenError, ConnectionError):
    exit_code = 3


class RefusedError(BusError):
    exit_code = 2


class StoreInUseError(OvenError, RuntimeError):
    exit_code = 2


class ProcessError(OvenError, RuntimeError):
    exit_code = 3


class DivergedError(OvenError, RuntimeError):
    """The log holds an output that this replica computes differently; continuing would fork the run's history."""

    exit_code = 3


def reason(error: BaseException) -> str:
    """What an error that this project did not raise itself says, in one line for a person: not its class, no number of
    the system's, and of a message that does not fit its model the first field that is wrong."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if callable(found := getattr(error, "errors", None)):  # pydantic's ValidationError; it is not imported for this
        first, *others = found(include_url=False)
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {len(others)} more)" if others else ""
        return f"{where}: {first['msg']}{more}" if where else f"{first['msg']}{more}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]!r} is missing"
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return " ".join(str(error).split()) or words
