"""Code that the clients for both SDKs share. The SDKs use httpx2, retry within a call and raise similar exceptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oven_llm.providers.failures import FailureKind, ModelFailure, classify_status
from oven_llm.providers.usage import current_tally

if TYPE_CHECKING:
    import httpx2

_Response = TypeVar("_Response")
_Parsed = TypeVar("_Parsed")

MAX_RETRIES: Final = 4
"""Maximum retries of a call within its deadline, after 0.5, 1, 2 and 4 s or the delay that the server requests."""
MAX_MODEL_NAME_CHARACTERS: Final = 100


def create_tallying_client(sdk: ModuleType) -> httpx2.AsyncClient:
    """Return the SDK's default HTTP client, extended to record each attempt in the current tally."""
    import httpx2

    unsent_errors = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

    class TallyingClient(sdk.DefaultAsyncHttpxClient):  # type: ignore[misc, name-defined]
        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            tally = current_tally()
            if tally is not None:
                tally.begin_attempt()
            try:
                response: httpx2.Response = await super().send(request, **options)
            except httpx2.TransportError as error:
                if tally is not None:
                    kind: FailureKind = "timeout" if isinstance(error, httpx2.TimeoutException) else "connection"
                    tally.fail_attempt(kind, billable=not isinstance(error, unsent_errors))
                raise
            except asyncio.CancelledError:
                if tally is not None:
                    tally.fail_attempt("timeout")  # the request's own deadline passed first
                raise
            if tally is not None and response.status_code >= 400:
                tally.fail_attempt(classify_status(response.status_code), billable=False)
            return response

    client: httpx2.AsyncClient = TallyingClient()
    return client


def convert_error(error: Exception, sdk: ModuleType) -> ModelFailure:
    """Convert an SDK's exception to a ModelFailure. Its message is dropped because it may quote the request."""
    name = type(error).__name__
    if isinstance(error, sdk.APIStatusError):
        return ModelFailure(classify_status(error.status_code), f"HTTP {error.status_code}")
    if isinstance(error, sdk.APITimeoutError):
        return ModelFailure("timeout", "an HTTP attempt got no reply in time")
    if isinstance(error, sdk.APIConnectionError):
        return ModelFailure("connection", "the endpoint is unreachable or closed the connection")
    # Neither SDK wraps the errors that an incomplete or invalid JSON body causes.
    if isinstance(error, (ValueError, TypeError, AttributeError, sdk.APIError)):
        return ModelFailure("bad_response", f"the response is malformed ({name})")
    return ModelFailure("internal", name)


def parse_response(response: object, response_type: type[_Response], parse: Callable[[_Response], _Parsed]) -> _Parsed:
    """Return `parse(response)`. Raises ModelFailure if the response is malformed. The SDKs do not validate responses.
    If a server returns an HTML page, they return it as a string."""
    if not isinstance(response, response_type):
        raise ModelFailure(
            "bad_response", f"the response is of type {type(response).__name__} instead of the API's object"
        )
    try:
        return parse(response)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelFailure("bad_response", f"the response is incomplete ({type(error).__name__})") from None


def clean_model_name(value: object, key: str) -> str:
    """Return the model's name in the response, or an empty string if the name contains the API key."""
    return "" if key in str(value) else str(value)[:MAX_MODEL_NAME_CHARACTERS]


def silence_request_logs() -> None:
    """Limit the loggers of the SDKs and the HTTP library to warnings. The environment variables OPENAI_LOG and
    ANTHROPIC_LOG can enable the level DEBUG, at which they log requests."""
    for name in ("openai", "anthropic", "httpx2", "httpcore2", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
