"""Kinds of failure, a closed set: they appear in `ScoreReply.failure`, in logs and in spans.

Details of a failure are our own words, because a provider's error text may quote the request and with it the key.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

Kind: TypeAlias = Literal[
    # On the way to the model. The SDKs retry these, except for the last three.
    "rate_limit",
    "overloaded",
    "server_error",
    "timeout",
    "connection",
    "auth",
    "not_found",
    "bad_request",
    # In the reply. A judge is asked at most twice more.
    "bad_response",
    "bad_json",
    "schema",
    "wrong_ids",
    "out_of_range",
    "refusal",
    "truncated",
    # On our side.
    "busy",
    "budget",
    "not_configured",
    "fooled",
    "quarantined",
    "malformed_request",
    "internal",
]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

HOPELESS: Final[frozenset[Kind]] = frozenset(("auth", "not_found", "not_configured", "budget"))
"""Failures that every later call of the same model would repeat."""

UNUSABLE: Final[frozenset[Kind]] = frozenset(
    ("bad_response", "bad_json", "schema", "wrong_ids", "out_of_range", "refusal", "truncated")
)
"""Failures in which a reply arrived without a usable verdict."""


class ModelFailure(Exception):
    """A model gave no usable reply. `detail` never contains text from a provider, a prompt or a completion."""

    def __init__(self, kind: Kind, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind: Kind = kind
        self.detail = detail


def kind_of_status(status: int) -> Kind:
    """Return the failure kind of an HTTP status outside 2xx."""
    match status:
        case 401 | 402 | 403:
            return "auth"
        case 404:
            return "not_found"
        case 408:
            return "timeout"
        case 429:
            return "rate_limit"
        case 503 | 529:
            return "overloaded"
    if status >= 500:
        return "server_error"
    return "bad_request" if status >= 400 else "bad_response"
