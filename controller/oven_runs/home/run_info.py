"""The content of a run's run.json. It is not a pydantic model, so that listing runs does not import pydantic."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Final, Literal, get_args

Status = Literal["running", "completed", "stopped", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The content of run.json. RunFolder.status returns the run's status, which the file does not contain."""

    run: str
    created: str
    """RFC 3339, UTC."""
    recipe: str
    start: str = ""
    drill: str = ""
    """The staged fault, if this run is a drill."""
    pid: int = 0
    """Process id of `up`."""
    url: str = ""
    port: int | None = None
    embedded: bool = True
    """Whether the run started its own nats-server."""
    creds: str = ""
    """.nk file or folder with keys, if the server is not embedded."""
    tls_ca: str = ""
    """Authority that signed the server's certificate. The system's authorities if empty."""
    children: dict[str, int] = field(default_factory=dict)
    """Process → pid."""
    ended: Status | None = None
    """How `up` ended. None if it runs or was killed."""
    learner_end: str = ""
    """How the learner's process ended. Empty while it runs."""
    mirrored: bool = False
    """Whether log.jsonl was written during the run and not yet completed from the store."""

    @classmethod
    def from_json(cls, data: bytes) -> RunInfo:
        """Parse the file, and ignore unknown fields. Raises ValueError or RecursionError."""
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        if missing := [name for name in ("run", "created", "recipe") if name not in content]:
            raise ValueError(f"{missing[0]!r} is missing")
        known = {name: content[name] for name in _TYPES if name in content}
        for name, value in known.items():
            if not isinstance(value, _TYPES[name]):
                raise ValueError(f"{name!r} is {value!r}")
        info = cls(**known)
        if info.ended not in (None, *get_args(Status)):
            raise ValueError(f"'ended' is {info.ended!r}")
        if invalid := [name for name, pid in info.children.items() if not isinstance(pid, int)]:
            raise ValueError(f"the process id of {invalid[0]!r} is not a number")
        return info

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


_TYPES: Final = {entry.name: str for entry in fields(RunInfo)} | {
    "pid": int,
    "port": int | None,
    "embedded": bool,
    "children": dict,
    "ended": str | None,
    "mirrored": bool,
}
"""The Python type of each field's JSON value."""
