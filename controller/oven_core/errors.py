"""The exceptions that this project raises on purpose, and helpers that describe errors and suggest similar names.

OvenError
├── ConfigError      (ValueError)       a setting is wrong; states the value and the remedy; exit code 2
│   ├── NameInUseError                  the run name is already in use
│   └── TeacherRefusedError             a model cannot teach this policy: too large, or a different vocabulary
├── UnknownNameError (LookupError)      no such recipe, agent, run, …; suggests similar names; exit code 2
├── BusError         (ConnectionError)  the bus cannot be used; exit code 3
│   └── RefusedError                    the server rejected the credentials; exit code 2
├── StoreInUseError  (RuntimeError)     another process is using the run's store; exit code 2
├── ProcessError     (RuntimeError)     a process of the stack did not start, or crashed; exit code 3
└── DivergedError    (RuntimeError)     the log contradicts this mesh replica; exit code 3
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Mapping
from typing import Final

from oven_core.removed_names import removal_message

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
"""Current names by kind and earlier name. Errors suggest the current name. Earlier names are not accepted."""

LIST_COMMANDS: Final[Mapping[str, str]] = {
    "agent": "agent list",
    "bench": "bench",
    "command": "--help",
    "decision": "decisions",
    "run": "runs",
    "symptom": "kg query search WORDS",
    "trace": "traces show",
}
"""Commands that show the valid names, by kind of name. Errors mention the command if there are too many names."""

MAX_LISTED: Final = 10
"""Maximum number of names that an error lists in full."""

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Error numbers for a full disk, an exceeded quota or file size limit, and a read-only disk."""


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

    def __init__(self, kind: str, name: str, valid_names: Iterable[str]) -> None:
        """`kind` is the kind of name, such as "recipe". `valid_names` are the names that exist."""
        known = sorted(valid_names)
        first_word = kind.split()[0]  # for example "command" of "command of kg"
        renamed = {old: new for old, new in RENAMED.get(first_word, {}).items() if new in known}
        current_names = renamed | {valid: valid for valid in known}
        matches = [name] if name in renamed else similar_names(name, current_names)
        suggestions = list(dict.fromkeys(current_names[match] for match in matches))
        command = LIST_COMMANDS.get(first_word)
        if suggestions:
            hint = "did you mean " + " or ".join(map(repr, suggestions)) + "?"
        elif not known:
            hint = f"there is no {kind} yet"
        elif command and len(known) > MAX_LISTED:
            hint = f"find one of the {len(known)} with `oven-controller {command}`"
        else:
            hint = "known: " + ", ".join(known[: 2 * MAX_LISTED]) + (", …" if len(known) > 2 * MAX_LISTED else "")
        super().__init__(removal_message(kind, name) or f"no {kind} named {name!r}; {hint}")
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


def similar_names(name: str, valid_names: Iterable[str]) -> list[str]:
    """Return at most three valid names that are spelled similarly, that extend `name`, or that `name` extends."""
    candidates = list(valid_names)
    matches = difflib.get_close_matches(name, candidates, n=3, cutoff=0.6)
    if len(name) > 2:
        matches += [valid for valid in candidates if valid.startswith(name) or name.startswith(valid)]
    return list(dict.fromkeys(matches))[:3]


def reason(error: BaseException) -> str:
    """Describe the cause of an error in one line, without its class and error number.

    This is for errors of Python and other libraries. For a pydantic error, only the first invalid field is described.
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if callable(errors := getattr(error, "errors", None)):  # pydantic's ValidationError, without importing it
        first, *others = errors(include_url=False)
        path = ".".join(str(part) for part in first["loc"])
        suffix = f" (and {len(others)} more)" if others else ""
        return (f"{path}: " if path else "") + str(first["msg"]).removeprefix("Value error, ") + suffix
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]!r} is missing"
    class_words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return " ".join(str(error).split()) or class_words
