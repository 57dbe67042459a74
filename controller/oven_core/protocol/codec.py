"""Decoding of messages: which may stand on which subject, and the reason why bytes are not a message."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from oven_core.protocol.messages import LogMessage, Message, RunStarted
from oven_core.protocol.subjects import BY_KIND, REQUESTS, SUBJECTS
from oven_core.removed import removed_from_logs


def _any_of(models: Iterable[type[Message]]) -> TypeAdapter[Any]:
    """Reads any of them, told apart by `type`."""
    one_of: Any = Annotated[reduce(or_, models), Field(discriminator="type")]
    return TypeAdapter(one_of)


_LOGGED: Final[TypeAdapter[LogMessage]] = _any_of(model for subject in SUBJECTS for model in subject.carries)
_ASKED: Final = _any_of(model for request in REQUESTS for model in (request.asks, request.answers))

Fault: TypeAlias = Literal["malformed", "version", "removed", "misplaced", "unsigned", "signature"]
"""Why an entry of the log counts for nothing: no message, one of another version, one that needs what was removed, one
on a subject that does not carry it, one without a signature where one is needed, one whose signature does not hold."""
_TRIAL_SUBJECTS: Final = ("trial", "branch")
"""Kinds of subjects of earlier versions, whose messages were about trials."""


class Malformed(BaseModel):
    """What could not be read, and why. Readers skip it and count it; it never becomes a value."""

    model_config = ConfigDict(frozen=True)

    reason: str
    fault: Fault = "malformed"


def decode(subject_kind: str, data: bytes) -> LogMessage | Malformed:
    """The message in `data`, or why there is none. Pure: every replica judges alike."""
    if subject_kind in _TRIAL_SUBJECTS:
        return Malformed(reason=removed_from_logs("trials"), fault="removed")
    try:
        body = _LOGGED.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        fault: Fault = "version" if first["loc"][-1:] == ("v",) else "malformed"
        return Malformed(reason=f"{where}: {first['msg']}", fault=fault)
    subject = BY_KIND.get(subject_kind)
    if subject is None or not isinstance(body, subject.carries):
        reason = f"a {body.type} does not belong on the subject {subject_kind!r}"
        return Malformed(reason=reason, fault="misplaced")
    if isinstance(body, RunStarted) and (content := _removed_content(data)):
        return Malformed(reason=removed_from_logs(content), fault="removed")
    return body


def _removed_content(run_started: bytes) -> str:
    """What the run used that this version does not have; empty if nothing. Rules alone made no trials: the learner also
    had to announce the metric by which it compares their arms."""
    recorded = from_json(run_started)
    rules = recorded.get("rules", {})
    if recorded.get("trials") and rules.get("trials", "off") != "off":
        return "trials"
    return "withheld decisions" if rules.get("control_share", 0) != 0 else ""


def json_schema() -> dict[str, Any]:
    """JSON Schema of all bodies, by class name under `$defs`."""
    return _LOGGED.json_schema()


def service_schema() -> dict[str, Any]:
    """The same for requests and answers."""
    return _ASKED.json_schema()
