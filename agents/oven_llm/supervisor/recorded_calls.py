"""The calls that an interrupted run has in its log: what was paid for is not asked again."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, reason
from oven_llm.providers.failures import KINDS, ModelFailure
from oven_llm.providers.usage import Usage
from oven_llm.supervisor.log import Role, events
from oven_llm.supervisor.models import LMResponse

Prompt = Sequence[Mapping[str, str]] | str


class RecordedCalls:
    """Answers by what was asked of which model, each given out once, in the order of the calls."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: the log's; None, or one without files: nothing is recorded. Raises ConfigError for
        a file that is damaged before its last line."""
        self._outcomes: dict[bytes, deque[LMResponse | ModelFailure]] = {}
        self._programs: Counter[tuple[int, str]] = Counter()
        self.paid: list[tuple[str, Prompt, LMResponse]] = []
        """All answers, refusals among them, with their role and what was asked."""
        self.failed: Counter[str] = Counter()
        """Calls that were made and not answered, by role."""
        if folder is None:
            return
        try:
            self._read(folder)
        except ConfigError as error:
            raise ConfigError(f"the run in {folder} cannot be resumed: {error}") from error
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the run in {folder} cannot be resumed: an event lacks parts ({reason(error)})"
            ) from error

    def _read(self, folder: Path) -> None:
        answered_step = 0
        for role, asked in (("supervisor", "messages"), ("worker", "prompt")):
            # A batch's calls are in the log as they ended; a resumed run asks in the order of their numbers.
            for event in sorted(_events(folder / f"{role}.jsonl"), key=lambda event: event["call"]):
                outcome: LMResponse | ModelFailure
                if "usage" in event:
                    self.paid.append((role, event[asked], _response(event)))
                elif _failure(event).kind != "budget":
                    self.failed[role] += 1
                if "response" in event:
                    outcome = _response(event)
                    if role == "supervisor":
                        answered_step = max(answered_step, event["step"])
                elif role == "worker" and event["step"] < answered_step:
                    outcome = _failure(event)  # the supervisor was told of it, and went on from there
                else:
                    continue  # it is asked again
                self._outcomes.setdefault(_key(role, event["model"], event[asked]), deque()).append(outcome)
        for event in _events(folder / "repl.jsonl"):
            self._programs[event["step"], event["code"]] += 1

    def take(self, role: Role, model: str, prompt: Prompt) -> LMResponse | ModelFailure | None:
        """The outcome of the same call, if there is one left. For one thread."""
        left = self._outcomes.get(_key(role, model, prompt)) if self._outcomes else None
        return left.popleft() if left else None

    def ran(self, step: int, code: str) -> bool:
        """Whether the log has this program of that step, once for each time that it is there."""
        if self._programs[step, code] <= 0:
            return False
        self._programs[step, code] -= 1
        return True


def _key(role: str, model: str, prompt: Prompt) -> bytes:
    asked = prompt if isinstance(prompt, str) else [dict(one) for one in prompt]
    return hashlib.sha256(json.dumps([role, model, asked]).encode()).digest()


def _response(event: Mapping[str, Any]) -> LMResponse:
    usage = None if event["usage"] is None else Usage.read(event["usage"])
    return LMResponse(event.get("response", ""), usage, event["elapsed"], "", event["usd"], event["finish"])


def _failure(event: Mapping[str, Any]) -> ModelFailure:
    kind, _, detail = event["failure"].partition(": ")
    return ModelFailure(kind if kind in KINDS else "internal", detail)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """None of a file that is not there yet."""
    return events(path) if path.exists() else iter(())
