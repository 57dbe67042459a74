"""Generate an AsyncAPI 3.0 document of the protocol, from which programs in any language can generate a client.

The document lists the messages, the subjects, and the roles that may publish and read them.
`oven-controller schema --asyncapi` prints the document, and docs/protocol/asyncapi.json is a copy.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from oven_core.protocol import messages
from oven_core.protocol.messages import Message
from oven_core.protocol.permissions import Role, permissions
from oven_core.protocol.subjects import SUBJECTS
from oven_core.protocol.unlogged_subjects import REQUESTS, UNLOGGED_SUBJECTS

_PARAMETERS: Final = {
    "run": "the run's name, 1 to 64 of A–Z a–z 0–9 _ -",
    "agent": "the agent's name, which is the name of its key",
    "operator": "the operator's name, which is the name of their key",
    "member": "the committee member's name",
    "id": "the id of the message",
    "tick": "the tick that the message closes",
}
_ROLES: Final[tuple[Role, ...]] = ("learner", "mesh", "agent", "member", "operator", "monitor")
"""Roles whose operations are listed. The other roles belong to this project's own processes."""
_REQUEST_NAMES: Final = {request.name for request in REQUESTS}


def generate_asyncapi() -> dict[str, Any]:
    """Return the document. Its keys are in a fixed order."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Oven Controller",
            "version": f"{messages.VERSION}.0.0",
            "description": "Observations of a training run, votes on its actuators, decisions and receipts, in one "
            "ordered log per run. docs/protocol.md explains what a schema cannot express.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "bus": {
                "host": "127.0.0.1:{port}",
                "protocol": "nats",
                "description": "The server of a run, as in OVEN_URL. Set the client's inbox prefix to "
                "`_INBOX_.<name>`: the server allows no other inbox.",
                "variables": {"port": {"default": "4222"}},
                "security": [{"$ref": "#/components/securitySchemes/nkey"}],
            }
        },
        "channels": _build_channels(),
        "operations": _build_operations(),
        "components": {
            "securitySchemes": {
                "nkey": {"type": "asymmetricEncryption", "description": "an nkey seed (ed25519), one per name"}
            },
            "messages": {name: _build_message(name) for name in sorted(_collect_models())},
            "schemas": _build_schemas(),
        },
    }


def _collect_models() -> dict[str, type[Message]]:
    """Return all messages that are sent on a subject, by name."""
    logged = [model for subject in SUBJECTS for model in subject.message_types]
    requests = [model for request in REQUESTS for model in (request.request_type, request.reply_type)]
    unlogged = [subject.message_type for subject in UNLOGGED_SUBJECTS]
    return {model.__name__: model for model in (*logged, *unlogged, *requests)}


def _build_channels() -> dict[str, Any]:
    channels = {}
    for subject in SUBJECTS:
        address = subject.address("{run}", "{" + subject.last_token + "}")
        channels[subject.kind] = _build_channel(address, subject.message_types)
    for unlogged in UNLOGGED_SUBJECTS:
        channels[unlogged.kind] = _build_channel(unlogged.pattern("{run}"), (unlogged.message_type,))
    for request in REQUESTS:
        channels[request.name] = _build_channel(request.address, (request.request_type,))
        channels[f"{request.name}.reply"] = {
            "address": None,
            "messages": _build_message_references((request.reply_type,)),
        }
    return channels


def _build_channel(address: str, models: tuple[type[Message], ...]) -> dict[str, Any]:
    channel: dict[str, Any] = {"address": address, "messages": _build_message_references(models)}
    names = re.findall(r"{(\w+)}", address)
    if names:
        channel["parameters"] = {name: {"description": _PARAMETERS[name]} for name in names}
    return channel


def _build_message_references(models: tuple[type[Message], ...]) -> dict[str, Any]:
    return {model.__name__: {"$ref": f"#/components/messages/{model.__name__}"} for model in models}


def _build_message(name: str) -> dict[str, Any]:
    model = _collect_models()[name]
    message: dict[str, Any] = {
        "name": name,
        "summary": " ".join((model.__doc__ or "").split()),
        "payload": {"$ref": f"#/components/schemas/{name}"},
    }
    subject = next((subject for subject in SUBJECTS if model in subject.message_types), None)
    headers: dict[str, Any] = {}
    if subject is not None:
        headers["traceparent"] = {"type": "string", "description": "W3C trace context, if there is one"}
    if subject is not None and subject.signed:
        headers["Oven-Signature"] = {
            "type": "string",
            "description": "ed25519, base64; docs/protocol.md describes the signed bytes",
        }
    if headers:
        message["headers"] = {"type": "object", "properties": headers}
    return message


def _build_schemas() -> dict[str, Any]:
    models = [(model, "validation") for _, model in sorted(_collect_models().items())]
    _, schema = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    return dict(sorted(schema["$defs"].items()))


def _build_operations() -> dict[str, Any]:
    operations: dict[str, Any] = {}
    for role in _ROLES:
        role_permissions = permissions(role, "NAME", "RUN")
        for action, verb in (("send", "publish"), ("receive", "subscribe")):
            allowed, denied = role_permissions[verb]["allow"], role_permissions[verb].get("deny", ())
            for name, channel in _build_channels().items():
                address, patterns = channel["address"], allowed
                if action == "receive" and name in _REQUEST_NAMES:
                    # A role with a `>` permission can read requests but does not answer them.
                    patterns = [pattern for pattern in patterns if not pattern.endswith(">")]
                if address is None or address in denied or not _is_allowed(patterns, address):
                    continue
                operation: dict[str, Any] = {
                    "action": action,
                    "channel": {"$ref": f"#/channels/{_escape(name)}"},
                    "tags": [{"name": role}],
                }
                if name in _REQUEST_NAMES:
                    operation["reply"] = {"channel": {"$ref": f"#/channels/{_escape(name + '.reply')}"}}
                operations[f"{role}.{action}.{name}"] = operation
    return operations


def _is_allowed(patterns: list[str], address: str) -> bool:
    """Return whether a pattern covers all subjects of an address, or at least the subject with the user's name."""
    subject = address.replace("{run}", "RUN")
    own_subject = re.sub(r"{(agent|operator|member)}", "NAME", subject)
    all_subjects = re.sub(r"{\w+}", "*", subject)
    return any(_covers(pattern, own_subject) or _covers(pattern, all_subjects) for pattern in patterns)


def _covers(pattern: str, subject: str) -> bool:
    """Return whether a NATS pattern, with the wildcards `*` and `>`, matches all that `subject` can stand for."""
    pattern_tokens, tokens = pattern.split("."), subject.split(".")
    for index, token in enumerate(pattern_tokens):
        if token == ">":
            return index < len(tokens)
        if index >= len(tokens) or (token != "*" and token != tokens[index]):
            return False
    return len(pattern_tokens) == len(tokens)


def _escape(name: str) -> str:
    """Escape a name for a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
