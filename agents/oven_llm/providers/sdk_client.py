"""The common base of both SDK clients: the SDKs use httpx2, retry within one call, and raise the same family of
exceptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oven_llm.providers.failures import Kind, ModelFailure, kind_of_status
from oven_llm.providers.usage import current_tally

if TYPE_CHECKING:
    import httpx2

_Response = TypeVar("_Response")
_Parsed = TypeVar("_Parsed")

RETRIES: Final = 4
"""Per call, after 0.5 s, 1 s, 2 s and 4 s or as the server requests; the request's deadline may end them earlier."""
MODEL_NAME_CHARACTERS: Final = 100


def watched_client(sdk: ModuleType) -> httpx2.AsyncClient:
    """The SDK's default HTTP client (with its proxies and limits), which records each attempt in the current tally."""
    import httpx2

    unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

    class Watched(sdk.DefaultAsyncHttpxClient):  # type: ignore[misc, name-defined]
        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            tally = current_tally()
            if tally is not None:
                tally.begin_attempt()
            try:
                response: httpx2.Response = await super().send(request, **options)
            except httpx2.TransportError as error:
                if tally is not None:
                    kind: Kind = "timeout" if isinstance(error, httpx2.TimeoutException) else "connection"
                    tally.fail_attempt(kind, billable=not isinstance(error, unsent))
                raise
            except asyncio.CancelledError:
                if tally is not None:
                    tally.fail_attempt("timeout")  # the request's own deadline passed first
                raise
            if tally is not None and response.status_code >= 400:
                tally.fail_attempt(kind_of_status(response.status_code), billable=False)
            return response

    client: httpx2.AsyncClient = Watched()
    return client


def failure_of(error: Exception, sdk: ModuleType) -> ModelFailure:
    """Translate an SDK's exception. Its text is dropped, because it may quote the request."""
    name = type(error).__name__
    if isinstance(error, sdk.APIStatusError):
        return ModelFailure(kind_of_status(error.status_code), f"HTTP {error.status_code}")
    if isinstance(error, sdk.APITimeoutError):
        return ModelFailure("timeout", "no answer within an attempt's time")
    if isinstance(error, sdk.APIConnectionError):
        return ModelFailure("connection", "the endpoint cannot be reached, or hung up")
    # Neither SDK wraps these: a body that is cut off or is not JSON.
    if isinstance(error, (ValueError, TypeError, AttributeError, sdk.APIError)):
        return ModelFailure("bad_response", f"the response is malformed ({name})")
    return ModelFailure("internal", name)


def parsed(response: object, expected: type[_Response], parse: Callable[[_Response], _Parsed]) -> _Parsed:
    """Return `parse(response)`. Raises ModelFailure if the response is not what the SDK promises: the SDKs do not
    validate their models, and return a string for a page of HTML."""
    if not isinstance(response, expected):
        raise ModelFailure("bad_response", f"the response is a {type(response).__name__}, not the API's object")
    try:
        return parse(response)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelFailure("bad_response", f"the response lacks fields ({type(error).__name__})") from None


def model_name(value: object, key: str) -> str:
    """The model's name as the endpoint gives it; empty if it contains the key."""
    return "" if key in str(value) else str(value)[:MODEL_NAME_CHARACTERS]


def silence_request_logs() -> None:
    """Limit the loggers of the SDKs and the HTTP library to warnings: at DEBUG, which OPENAI_LOG and ANTHROPIC_LOG
    switch on, they log requests."""
    for name in ("openai", "anthropic", "httpx2", "httpcore2", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
