"""What other rules would have made of one decision, asked of a process of its own.

Deciding a log again is work for a core, and the monitor has to answer keys meanwhile: so the question goes to a child
of lower priority with a limit of time, which ends with the person's interest. `ask` is the monitor's side, `main` the
child's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from oven_controller.errors import OvenError, reason
from oven_controller.log.other_rules import OtherRules, OtherRuling
from oven_controller.protocol.messages import Decision, RunStarted
from oven_tui.model.rule_variants import variants

if TYPE_CHECKING:
    from oven_controller.runs.folder import RunFolder

LIMIT_S: Final = 20.0
"""Seconds of CPU after which the child stops: what it has found by then is said, with how far it came."""
PATIENCE_S: Final = 90.0
"""Seconds by the clock after which a child that says nothing is ended."""
NICE: Final = 10


class Ruling(BaseModel):
    """The answer of one variant."""

    model_config = ConfigDict(frozen=True)

    words: str
    """Which rules."""
    ruling: OtherRuling


class Answer(BaseModel):
    """What the child found."""

    model_config = ConfigDict(frozen=True)

    rulings: tuple[Ruling, ...] = ()
    cannot: str = ""
    """Why it cannot be told, or not for sure: a sentence."""


async def ask(where: Sequence[str], decision: str) -> Answer:
    """Of the decision with this id, in the run that `where` names as the monitor's own arguments do. Never raises but
    for its cancellation, which ends the child."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "oven_tui.other_rules",
        decision,
        *where,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            said, _ = await child.communicate()
        return Answer.model_validate_json(said)
    except TimeoutError:
        return Answer(cannot=f"it was not told within {PATIENCE_S:g} s; {_elsewhere(decision)}")
    except ValidationError:
        return Answer(cannot=f"the question came to nothing (exit code {child.returncode}); {_elsewhere(decision)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            if child.returncode is None:
                child.kill()
                await child.wait()


def _elsewhere(decision: str) -> str:
    return f"`oven-controller explain {decision} --set rules.KEY=VALUE` asks without a limit"


def main(argv: Sequence[str]) -> int:
    """The child: prints an Answer as JSON. `argv`: the decision's id, and the run's folder."""
    from oven_controller.runs.folder import RunFolder

    os.nice(NICE)
    decision, folder = argv[0], RunFolder(Path(argv[1]))
    try:
        answer = asyncio.run(_answered(folder, decision))
    except (OvenError, OSError, ValueError) as error:
        answer = Answer(cannot=f"the log cannot be read: {reason(error)}")
    print(answer.model_dump_json())
    return 0


async def _answered(folder: RunFolder, id_: str) -> Answer:
    from oven_controller.runs import log_reader
    from oven_controller.security.signing import Keyring

    judge = Keyring(folder.pin(), check=False).verify
    about: Decision | None = None
    started: RunStarted | None = None
    async with contextlib.aclosing(log_reader.events(folder, judge=judge, tell=_untold)) as log:
        async for event in log:
            started = event.body if started is None and isinstance(event.body, RunStarted) else started
            if isinstance(event.body, Decision) and event.body.id == id_:
                about = event.body
                break
    if about is None or started is None:
        return Answer(cannot=f"the log has no decision {id_}, or nothing that says by which rules it was made")
    asked = [
        (one.words, OtherRules(folder.run, about, one.changes, _in_place(one.changes)))
        for one in variants(started.rules, about)
    ]
    spent = False
    async with contextlib.aclosing(log_reader.events(folder, judge=judge, tell=_untold)) as log:
        async for event in log:
            open_ = [other for _, other in asked if not other.done]
            spent = time.process_time() > LIMIT_S
            if not open_ or spent:
                break
            for other in open_:
                other.feed(event)
    if spent:
        return Answer(
            cannot=f"the log up to this decision is too long to decide again while one waits; {_elsewhere(id_)}"
        )
    return Answer(rulings=tuple(Ruling(words=words, ruling=other.answer()) for words, other in asked))


def _in_place(changes: dict[str, Any]) -> Any:
    from oven_controller.settings.resolution import with_rules

    return lambda logged: with_rules(logged, changes)


def _untold(_line: str) -> None:
    """The monitor has the terminal."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
