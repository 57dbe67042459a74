"""What both SDKs share: they sit on httpx2, retry inside one call, and fail with the same family of exceptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from oven_llm.providers.failures import Kind, ModelFailure, kind_of_status
from oven_llm.providers.usage import current

if TYPE_CHECKING:
    import httpx2

_Read = TypeVar("_Read")

RETRIES = 4
"""Of one call, after 0.5 s, 1 s, 2 s and 4 s or as the server asks; the request's deadline ends them earlier."""


def watched_client(sdk: ModuleType) -> httpx2.AsyncClient:
    """The SDK's own default HTTP client (proxies, limits and all) that enters each attempt in the current ledger."""
    import httpx2

    unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

    class Watched(sdk.DefaultAsyncHttpxClient):  # type: ignore[misc, name-defined]
        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            ledger = current()
            if ledger is not None:
                ledger.begin()
            try:
                response: httpx2.Response = await super().send(request, **options)
            except httpx2.TransportError as error:
                if ledger is not None:
                    kind: Kind = "timeout" if isinstance(error, httpx2.TimeoutException) else "connection"
                    ledger.fault(kind, billable=not isinstance(error, unsent))
                raise
            except asyncio.CancelledError:
                if ledger is not None:
                    ledger.fault("timeout")  # the request's own deadline came first
                raise
            if ledger is not None and response.status_code >= 400:
                ledger.fault(kind_of_status(response.status_code), billable=False)
            return response

    client: httpx2.AsyncClient = Watched()
    return client


def failure_of(error: Exception, sdk: ModuleType) -> ModelFailure:
    """What an SDK raised, as one of our kinds. The error's own text is left behind: it may quote the request."""
    name = type(error).__name__
    if isinstance(error, sdk.APIStatusError):
        return ModelFailure(kind_of_status(error.status_code), f"HTTP {error.status_code}")
    if isinstance(error, sdk.APITimeoutError):
        return ModelFailure("timeout", "no answer within an attempt's time")
    if isinstance(error, sdk.APIConnectionError):
        return ModelFailure("connection", "the endpoint cannot be reached, or hung up")
    # Neither SDK wraps these: a body that is cut off, or not JSON at all.
    if isinstance(error, (ValueError, TypeError, AttributeError, sdk.APIError)):
        return ModelFailure("bad_response", f"the body is not the API's ({name})")
    return ModelFailure("internal", name)


def read(answer: object, expected: type[_Read], reader: Callable[[_Read], Any]) -> Any:
    """`reader(answer)`; ModelFailure where the answer is not what the SDK promises: it builds its models without
    validating them, and returns a string for a page of HTML."""
    if not isinstance(answer, expected):
        raise ModelFailure("bad_response", f"a {type(answer).__name__} instead of the API's object")
    try:
        return reader(answer)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelFailure("bad_response", f"the object lacks parts ({type(error).__name__})") from None


def count(value: object) -> int:
    """A token count. Raises TypeError or ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    if value < 0:
        raise ValueError
    return value


def quieten() -> None:
    """The SDKs' and the HTTP library's loggers write requests down at DEBUG, which OPENAI_LOG and ANTHROPIC_LOG can
    switch on; here they may only warn."""
    for name in ("openai", "anthropic", "httpx2", "httpcore2", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
