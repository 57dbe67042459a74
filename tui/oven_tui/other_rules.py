"""Asks a child process what other rules would have made of one decision.

Deciding a log again keeps a core busy, and the monitor has to answer keys meanwhile. So the question goes to a child of
lower priority with a time limit, which ends when the user leaves the page. `ask` is the monitor's side, `main` the
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

from oven_core.errors import OvenError, reason
from oven_core.protocol.messages import Decision, RunStarted
from oven_runs.log.other_rules import OtherRules, OtherRuling
from oven_tui.model.rule_variants import variants

if TYPE_CHECKING:
    from oven_core.protocol.events import Event
    from oven_runs.access.run_access import RunAccess

LIMIT_S: Final = 20.0
"""Seconds of CPU after which the child stops and reports how far it came."""
MOST_EVENTS: Final = 200_000
"""The most events before a decision. They are in memory, about 2 KB each."""
PATIENCE_S: Final = 90.0
"""Seconds by the clock after which a silent child is ended."""
NICE: Final = 10


class Ruling(BaseModel):
    """The result of one variant."""

    model_config = ConfigDict(frozen=True)

    words: str
    """The rules in words."""
    ruling: OtherRuling


class Answer(BaseModel):
    """The child's results."""

    model_config = ConfigDict(frozen=True)

    rulings: tuple[Ruling, ...] = ()
    cannot: str = ""
    """Why there is no result, or no certain one: a sentence."""


async def ask(where: Sequence[str], decision: str) -> Answer:
    """Ask about the decision with this id in the run that `where` names as the monitor's arguments do. Raises nothing
    but its own cancellation, which ends the child."""
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
            output, _ = await child.communicate()
        return Answer.model_validate_json(output)
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
    """Run the child: print an Answer as JSON. `argv` is the decision's id and the run as RunAccess.arguments names
    it."""
    os.nice(NICE)
    try:
        answer = asyncio.run(_answered(_run(argv[1:]), argv[0]))
    except (OvenError, OSError, ValueError) as error:
        answer = Answer(cannot=f"the log cannot be read: {reason(error)}")
    print(answer.model_dump_json())
    return 0


def _run(arguments: Sequence[str]) -> RunAccess:
    from oven_runs.access.endpoint import Endpoint
    from oven_runs.access.local_run import LocalRun
    from oven_runs.access.remote_run import RemoteRun
    from oven_runs.home.run_folder import RunFolder

    if not arguments[0].startswith("--"):
        return LocalRun(RunFolder(Path(arguments[0])))
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    creds, ca = options.get("--creds"), options.get("--tls-ca")
    endpoint = Endpoint(options.get("--nats", ""), Path(creds) if creds else None, Path(ca) if ca else None)
    return RemoteRun.from_endpoint(endpoint.completed(), options.get("--run"))


async def _answered(access: RunAccess, id_: str) -> Answer:
    before: list[Event] = []
    questions: list[tuple[str, OtherRules]] = []
    started: RunStarted | None = None
    async with contextlib.aclosing(access.events(check=False, tell=_untold)) as log:
        async for event in log:
            if questions:
                before = [event]
            else:
                before.append(event)
                if len(before) > MOST_EVENTS:
                    return Answer(cannot=f"more than {MOST_EVENTS:,} events come before it; {_elsewhere(id_)}")
                if started is None and isinstance(event.body, RunStarted):
                    started = event.body
                if not (started is not None and isinstance(event.body, Decision) and event.body.id == id_):
                    continue
                about = event.body
                questions = [
                    (variant.words, OtherRules(access.run, about, variant.changes, _in_place(variant.changes)))
                    for variant in variants(started.rules, about)
                ]
            for each in before:
                for _, rules in questions:
                    if not rules.done:
                        rules.feed(each)
                if time.process_time() > LIMIT_S:
                    return Answer(
                        cannot=f"deciding so long a log again takes more than {LIMIT_S:g} s; {_elsewhere(id_)}"
                    )
            if all(rules.done for _, rules in questions):
                break
    if not questions:
        return Answer(cannot=f"the log has no decision {id_}, or nothing that says by which rules it was made")
    return Answer(rulings=tuple(Ruling(words=words, ruling=rules.answer()) for words, rules in questions))


def _in_place(changes: dict[str, Any]) -> Any:
    from oven_runs.settings.resolution import with_rules

    return lambda logged: with_rules(logged, changes)


def _untold(_line: str) -> None:
    """Discard the message: the monitor has the terminal."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
