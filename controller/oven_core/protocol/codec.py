"""Decode the messages of the log, state why an entry is not valid, and generate the JSON schemas."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from oven_core.protocol.messages import LogMessage, Message, RunStarted
from oven_core.protocol.subjects import BY_KIND, SUBJECTS
from oven_core.removed_names import removed_content_message


def _build_adapter(message_types: Iterable[type[Message]]) -> TypeAdapter[Any]:
    """Return an adapter that decodes any of the message types. The field `type` of a message selects its type."""
    union: Any = Annotated[reduce(or_, message_types), Field(discriminator="type")]
    return TypeAdapter(union)


@cache
def _log_adapter() -> TypeAdapter[LogMessage]:
    """Return the adapter of all messages in the log. It is built on first use, because a command may read no log."""
    return _build_adapter(model for subject in SUBJECTS for model in subject.message_types)


def build_models() -> None:
    """Build the validators of all messages in the log. A process that must not wait for them later calls this first."""
    for subject in SUBJECTS:
        for model in subject.message_types:
            model.model_rebuild()
    _log_adapter()


Fault: TypeAlias = Literal["malformed", "version", "removed", "misplaced", "unsigned", "signature"]
"""Why readers skip an entry of the log. `malformed`: it is not a message. `version`: it has another schema version.
`removed`: it needs a removed feature. `misplaced`: it is on the wrong subject. `unsigned`: it lacks a required
signature. `signature`: its signature is wrong."""
_TRIAL_SUBJECTS: Final = ("trial", "branch")
"""Kinds of subjects that earlier versions used for trials, a removed feature."""


class Malformed(BaseModel):
    """The body of an entry that is not valid. Readers skip and count such entries."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    reason: str
    fault: Fault = "malformed"


def decode(subject_kind: str, data: bytes) -> LogMessage | Malformed:
    """Return the message in `data`, or Malformed with the reason. All replicas get the same result."""
    if subject_kind in _TRIAL_SUBJECTS:
        return Malformed(reason=removed_content_message("trials"), fault="removed")
    try:
        body = _log_adapter().validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "body"
        fault: Fault = "version" if first["loc"][-1:] == ("v",) else "malformed"
        return Malformed(reason=f"{path}: {first['msg']}", fault=fault)
    subject = BY_KIND.get(subject_kind)
    if subject is None or not isinstance(body, subject.message_types):
        reason = f"a {body.type} does not belong on the subject {subject_kind!r}"
        return Malformed(reason=reason, fault="misplaced")
    if isinstance(body, RunStarted) and (content := _removed_content(data)):
        return Malformed(reason=removed_content_message(content), fault="removed")
    return body


def _removed_content(run_started: bytes) -> str:
    """Return the name of a removed feature that the run used, or an empty string.

    A run used trials if its rules turned them on, and it announced in `trials` the metric that compared them."""
    recorded = from_json(run_started)
    rules = recorded.get("rules", {})
    if recorded.get("trials") and rules.get("trials", "off") != "off":
        return "trials"
    return "withheld decisions" if rules.get("control_share", 0) != 0 else ""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of all messages in the log, by class name under `$defs`."""
    return _log_adapter().json_schema()


def service_schema() -> dict[str, Any]:
    """Return the JSON Schema of all requests and replies, by class name under `$defs`."""
    from oven_core.protocol.unlogged_subjects import REQUESTS

    return _build_adapter(model for kind in REQUESTS for model in (kind.request_type, kind.reply_type)).json_schema()
