"""The endpoint of the scripted teachers in its own process: `python -m tests.support.teacher_endpoint SEED`.

It prints its address, and serves until its standard input ends. At /billed it says what it would bill, by model, and
how many whole answers it has given about each state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from tests.support import scripted_conversation
from tests.support.judge_endpoint import Endpoint
from tests.support.made_traces import state_name
from tests.support.scripted_teachers import script

ROOT: Final = Path(__file__).resolve().parents[2]
SPOILT: Final = frozenset(("429", "500", "529", "reset", "hang", "cutbody", "html"))
"""Faults after which there is no whole answer to keep."""


class TeacherEndpoint(Endpoint):
    """The judges' endpoint with the teachers' script, and a count of whole answers by state."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.script = script
        self._whole: dict[str, Counter[str]] = {}

    async def _faulty(
        self, request: web.Request, body: dict[str, Any], fault: str, answer: Callable[[str], dict[str, Any]]
    ) -> web.StreamResponse:
        if fault not in SPOILT:
            read = (
                scripted_conversation.anthropic_messages
                if request.path.endswith("/v1/messages")
                else scripted_conversation.openai_messages
            )
            state = state_name(one.text for one in read(body))
            self._whole.setdefault(body["model"], Counter())[state] += 1
        return await super()._faulty(request, body, fault, answer)

    async def _billed(self, _: web.Request) -> web.Response:
        return web.json_response({"tokens": self.bills.tokens, "whole": self._whole, "served": self.served})
