"""The kinds of failure of a model call, which appear in `ScoreReply.failure`, in logs and in spans.

A failure's details never quote a provider's error message, which may contain the request and even the API key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

FailureKind: TypeAlias = Literal[
    # HTTP and network errors. The SDKs retry them, except for auth, not_found and bad_request.
    "rate_limit", "overloaded", "server_error", "timeout", "connection", "auth", "not_found", "bad_request",
    # Unusable replies. A judge gets at most two more requests.
    "bad_response", "bad_json", "schema", "wrong_ids", "out_of_range", "refusal", "truncated",
    # Failures without a call, or in our own code. A judge that fails a hidden test is `fooled`.
    "busy", "budget", "not_configured", "fooled", "quarantined", "malformed_request", "internal",
]  # fmt: skip

KINDS: Final[tuple[FailureKind, ...]] = get_args(FailureKind)

PERMANENT_KINDS: Final[frozenset[FailureKind]] = frozenset(("auth", "not_found", "not_configured", "budget"))
"""Failures that every further call to the same model would repeat."""

UNUSABLE_REPLY_KINDS: Final[frozenset[FailureKind]] = frozenset(
    ("bad_response", "bad_json", "schema", "wrong_ids", "out_of_range", "refusal", "truncated")
)
"""Failures in which a reply arrived but could not be used."""


class ModelFailure(Exception):
    """Raised when a model call fails. `detail` never contains text from a provider, a prompt or a completion."""

    def __init__(self, kind: FailureKind, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind: FailureKind = kind
        self.detail = detail


def classify_status(status: int) -> FailureKind:
    """Return the kind of failure that an HTTP status outside 2xx stands for."""
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


def format_counts(counts: Mapping[str, int] | Mapping[FailureKind, int]) -> str:
    """Return counts as text, e.g. "auth 1, timeout 3", or "none"."""
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()) if count) or "none"
