"""`oven-controller doctor --judges`, on this side: every configured judge is asked once, all at the same time."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from oven_core.errors import ConfigError
from oven_llm.judges.configured_judge import ConfiguredJudge
from oven_llm.judges.probe import probe
from oven_runs.settings.committee_settings import CommitteeSettings, MemberSettings
from oven_runs.settings.judge_providers import Catalogue, catalogue


def probe_configured() -> None:
    """Reads a committee's settings as JSON from stdin, and prints the results by member as JSON. Keys come from the
    environment: neither the command line nor a file has them."""
    logging.getLogger("oven.member").setLevel(logging.CRITICAL)  # what is lacking stands in the results
    committee = CommitteeSettings.model_validate_json(sys.stdin.buffer.read())
    known = catalogue(committee.providers)

    async def ask_all() -> list[dict[str, Any]]:
        asked = (_probed(name, member, known) for name, member in committee.judges.items())
        return list(await asyncio.gather(*asked))

    print(json.dumps(dict(zip(committee.judges, asyncio.run(ask_all()), strict=True))))


async def _probed(name: str, member: MemberSettings, known: Catalogue) -> dict[str, Any]:
    try:
        judge = ConfiguredJudge.look_up(name, member, known)
        provider = judge.connect()
    except ConfigError as error:
        missing = {"provider": member.provider, "model": member.model, "can_judge": False, "lacks": []}
        return missing | {"failure": "not_configured", "detail": str(error), "remedy": ""}
    try:
        return (await probe(provider, judge.rubric)).as_json()
    finally:
        await provider.close()
