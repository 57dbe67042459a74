"""Every environment variable that this project reads: its name, meaning and readers.

docs/settings.md shows this table, and a test compares it with the variables that the sources name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SetBy = Literal["you", "stack", "compose"]
_EVERY = "learner, agents, members, mesh, kg"
_AND_PERSONS = f"{_EVERY}; the command line for a run elsewhere"


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable."""

    name: str
    """A name that ends in `_` is a prefix."""
    meaning: str
    readers: str
    set_by: SetBy


VARIABLES = (
    Variable(
        "OVEN_HOME",
        "folder with all runs and the cache [default: `.oven` in the current folder]",
        "command line",
        "you",
    ),
    Variable(
        "OVEN_SET_",
        "`OVEN_SET_RULES__WINDOW_TICKS=5` is `--set rules.window_ticks=5`; two underscores stand for a dot",
        "`up`, `run --`, `config show`",
        "you",
    ),
    Variable(
        "OVEN_MODE",
        "`required`: without a stack a training script ends with an error; `optional`: it trains without one; "
        "`disabled`: it does not look for one [default: the script's mode, else `required`]",
        "learner",
        "you",
    ),
    Variable(
        "OVEN_TLS_CA",
        "PEM file of the authority that signed the server's certificate [default: the system's authorities]",
        "everything that connects to a server",
        "you",
    ),
    Variable("OVEN_LIGHT", "1: the monitor's `--light`", "monitor", "you"),
    Variable("OVEN_COLOUR_BLIND", "1: the monitor's `--colour-blind`", "monitor", "you"),
    Variable("OVEN_ASCII", "1: the monitor's `--ascii`; 0: its `--no-ascii`", "monitor", "you"),
    Variable(
        "OVEN_OTLP",
        "address for traces, OTLP over HTTP; unset: no traces; the setting `otlp` sets it in a stack",
        _EVERY,
        "you",
    ),
    Variable("OVEN_URL", "address of the NATS server, or several with commas", _AND_PERSONS, "stack"),
    Variable("OVEN_RUN", "run name", _AND_PERSONS, "stack"),
    Variable("OVEN_RUN_DIR", "the run's folder", "learner, members, monitor, `doctor`", "stack"),
    Variable(
        "OVEN_CREDS",
        "file with the nkey seed of this role or agent, or a person's credential file",
        _AND_PERSONS,
        "stack",
    ),
    Variable(
        "OVEN_LEARNER_KEY",
        "public key of the learner, which vouches for all others; unset: the first one in the log is trusted",
        "agents, mesh; the command line for a run elsewhere",
        "stack",
    ),
    Variable("OVEN_KEYS", "`keys.json`, the signers' public keys; unset: the run is not signed", "learner", "stack"),
    Variable("OVEN_HISTORY_CREDS", "file with the nkey seed of the history service", "mesh", "stack"),
    Variable("OVEN_REPLICA", "name of this mesh replica [default: `mesh`]", "mesh", "stack"),
    Variable("OVEN_AGENTS_MEMORY_MB", "memory limit of a process of agents, in MB; unset: none", "agents", "stack"),
    Variable(
        "OVEN_RELAUNCH",
        "set if the learner is restarted when it asks for that; unset: it offers no rollback by a restart",
        "learner",
        "stack",
    ),
    Variable(
        "OVEN_RESUME_FROM",
        "where a restarted learner begins: a checkpoint's folder, `latest` or `start`",
        "learner",
        "stack",
    ),
    Variable(
        "OVEN_PARENT_FD",
        "file descriptor of the pipe that closes when `up` ends",
        "the stack's processes",
        "stack",
    ),
    Variable(
        "OVEN_TRAIN",
        "folder that is mounted read-only at `/train` [default: `examples`]",
        "docker/compose.yaml",
        "compose",
    ),
    Variable("OVEN_SCRIPT", "script in that folder [default: `raw_loop.py`]", "docker/compose.yaml", "compose"),
    Variable("OVEN_AUTONOMY", "`rules.autonomy` of the run [default: `observe`]", "docker/compose.yaml", "compose"),
)
