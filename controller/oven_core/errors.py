"""The exceptions that this project raises on purpose.

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

from oven_core.removed_names import removal

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
"""For each kind of name, earlier name → present name. Only errors use it, to suggest a name; earlier names are not
accepted."""

LISTED_BY: Final[Mapping[str, str]] = {
    "agent": "agent list",
    "bench": "bench",
    "command": "--help",
    "decision": "decisions",
    "run": "runs",
    "symptom": "kg query search WORDS",
    "trace": "traces show",
}
"""For each kind of name, the command that shows valid names. Errors name it if there are too many to list."""

FEW: Final = 10
"""Names that an error lists in full."""

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Numbers of an OSError for a full disk, a quota, a limit on a file's size, or a read-only disk."""


class OvenError(Exception):
    """Base class of all errors of this project. The command line exits with `exit_code`."""

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
        """`kind` is the kind of name ("recipe"), and `known` has the valid names."""
        known = sorted(known)
        earlier = {old: new for old, new in RENAMED.get(kind.split()[0], {}).items() if new in known}
        candidates = earlier | {valid: valid for valid in known}
        close = [name] if name in earlier else similar(name, candidates)
        near = list(dict.fromkeys(candidates[candidate] for candidate in close))
        command = LISTED_BY.get(kind.split()[0])
        if near:
            hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
        elif not known:
            hint = f"there is no {kind} yet"
        elif command and len(known) > FEW:
            hint = f"find one of the {len(known)} with `oven-controller {command}`"
        else:
            hint = "known: " + ", ".join(known[: 2 * FEW]) + (", …" if len(known) > 2 * FEW else "")
        super().__init__(removal(kind, name) or f"no {kind} named {name!r}; {hint}")
        self.name = name
        self._arguments = (kind, name, known)

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str, str, list[str]]]:
        """Support pickling, because worker processes raise it too."""
        return type(self), self._arguments


class BusError(OvenError, ConnectionError):
    exit_code = 3


class RefusedError(BusError):
    exit_code = 2


class StoreInUseError(OvenError, RuntimeError):
    exit_code = 2


class ProcessError(OvenError, RuntimeError):
    exit_code = 3


class DivergedError(OvenError, RuntimeError):
    """Raised if the log has an output that this replica computes differently. Continuing would fork the history."""

    exit_code = 3


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three of the `known` names: near spellings, and names of which one begins with the other."""
    known = list(known)
    begun = [valid for valid in known if len(name) > 2 and (valid.startswith(name) or name.startswith(valid))]
    return list(dict.fromkeys([*difflib.get_close_matches(name, known, n=3, cutoff=0.6), *begun]))[:3]


def reason(error: BaseException) -> str:
    """Return the cause of an error that this project did not raise itself, in one line for people: without its class
    and the system's error number. Of a pydantic error it is the first wrong field."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if callable(errors := getattr(error, "errors", None)):  # pydantic's ValidationError, without importing it
        first, *others = errors(include_url=False)
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {len(others)} more)" if others else ""
        return (f"{where}: " if where else "") + str(first["msg"]).removeprefix("Value error, ") + more
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]!r} is missing"
    class_words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return " ".join(str(error).split()) or class_words
