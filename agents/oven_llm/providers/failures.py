"""The kinds of failure, a closed set: what stands in `ScoreReply.failure`, in the logs and in the spans.

A failure's detail is in our own words: a provider's error text may quote the request, and with it the key.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

Kind: TypeAlias = Literal[
    # The way there: the SDK tries these again by itself, but for the last three.
    "rate_limit",
    "overloaded",
    "server_error",
    "timeout",
    "connection",
    "auth",
    "not_found",
    "bad_request",
    # What came back: asked again, twice at most.
    "bad_response",
    "bad_json",
    "schema",
    "wrong_ids",
    "out_of_range",
    "refusal",
    "truncated",
    # Here.
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
"""Every later call of the same model would meet them again, whatever it asks."""

UNUSABLE: Final[frozenset[Kind]] = frozenset(
    ("bad_response", "bad_json", "schema", "wrong_ids", "out_of_range", "refusal", "truncated")
)
"""An answer came, and there is no verdict in it."""


class ModelFailure(Exception):
    """Why there is no answer of a model's, or none that can be used. `detail` never holds text of a provider's, a
    prompt or a completion."""

    def __init__(self, kind: Kind, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind: Kind = kind
        self.detail = detail


def kind_of_status(status: int) -> Kind:
    """Which kind an HTTP status (outside 2xx) is."""
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
