"""`oven-controller backtest AGENT RUN`: the findings as lines for people, or as one object for scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from oven_agents.backtest.backtest import Backtest, Findings, Said
from oven_agents.runtime.loader import Recalling, load, load_repeatable
from oven_agents.sdk.agent import Agent
from oven_core.errors import ConfigError
from oven_core.mesh.actuator_values import show
from oven_core.protocol import names
from oven_core.protocol.events import Event
from oven_core.terminal_text import say, wrapped
from oven_runs.access import log_reader
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.backtest_report import BacktestDivergence, BacktestNotice, BacktestReport, BacktestVote
from oven_runs.log.counterfactual import spoken
from oven_runs.settings.resolution import with_rules

OPEN_LOOP = (
    "open loop: the recording continues as it went, whatever is decided here; only what comes before the first "
    "divergence is sure, and no confidence is scored, since what its changes would have done is not in the recording"
)


def main(
    agent: str,
    folder: RunFolder,
    *,
    until: int | None,
    as_json: bool,
    rules: Mapping[str, Any] | None = None,
    hints: Callable[[Sequence[str]], Sequence[str]] = lambda _: (),
) -> int:
    """`rules` replace those of the recording; `hints` says of its metrics what they lack.
    Raises ConfigError and what else reading a log raises."""
    events = log_reader.events(folder, exact=True, until=until)
    found = asyncio.run(look(agent, folder.run, events, rules or {}, kept=folder))
    if as_json:
        print(report(found, rules or {}, hints(found.metrics)).model_dump_json(ensure_ascii=True))
    else:
        say(*(line for text in [*lines(found), *hints(found.metrics)] for line in wrapped(text)))
    return 0


async def backtest(
    agent: str, run: str, events: AsyncIterable[Event], rules: Mapping[str, Any], hear: Callable[[int, int], object]
) -> BacktestReport:
    """`hear` is called with (events, tick) after each event, and may raise to end it.
    Raises as `main`."""
    return report(await look(agent, run, events, rules, hear), rules)


async def look(
    agent: str,
    run: str,
    events: AsyncIterable[Event],
    rules: Mapping[str, Any],
    hear: Callable[[int, int], object] = lambda _events, _tick: None,
    kept: RunFolder | None = None,
) -> Findings:
    """The agent over the events of a run, judged. `kept`: the run's folder, for an agent that keeps what it was told
    there."""
    name, loaded = load(agent)
    if kept is not None and isinstance(loaded, Recalling):
        log = [event async for event in events]
        await asyncio.to_thread(loaded.recall, kept.path, log, _settings(kept))
        return await _over(name, loaded, run, _listed(log), rules, hear, in_thread=True)
    name, loaded = load_repeatable(agent)
    return await _over(name, loaded, run, events, rules, hear)


async def _over(
    name: str,
    loaded: Agent,
    run: str,
    events: AsyncIterable[Event],
    rules: Mapping[str, Any],
    hear: Callable[[int, int], object],
    in_thread: bool = False,
) -> Findings:
    test = Backtest(loaded, names.checked("agent", name), run, lambda logged: with_rules(logged, rules))
    count = 0
    async for event in events:
        if in_thread:  # it runs a loop of its own
            await asyncio.to_thread(test.take, event)
        else:
            test.take(event)
        count += 1
        hear(count, test.tick)
    if not test.started:
        raise ConfigError(f"run {run!r} never started: there is no RunStarted in what was read of its log")
    return test.findings()


async def _listed(log: Sequence[Event]) -> AsyncIterator[Event]:
    for event in log:
        yield event


def _settings(folder: RunFolder) -> dict[str, Any]:
    """Of the run; nothing where they cannot be read."""
    try:
        found = json.loads((folder.path / "config.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def report(found: Findings, rules: Mapping[str, Any], hints: Sequence[str] = ()) -> BacktestReport:
    """The same as one message."""
    first = found.divergences[0] if found.divergences else None
    proposals, rate, decisions = _counts(found)
    return BacktestReport(
        agent=found.agent,
        run=found.run,
        ticks=found.ticks,
        votes=tuple(map(_row, found.said)),
        proposals=proposals,
        proposals_per_1000_ticks=rate,
        decisions=decisions,
        cannot_fire=found.cannot_fire,
        problems=tuple(found.problems),
        notices=tuple(BacktestNotice(tick=tick, text=text) for tick, text in found.notices),
        took_part=found.took_part,
        same_votes=found.same_votes,
        shadow=found.shadow,
        divergences=len(found.divergences),
        first_divergence=None
        if first is None
        else BacktestDivergence(
            tick=first.tick, actuator=first.actuator, logged=spoken(first.logged), computed=spoken(first.computed)
        ),
        ignored_receipts=found.ignored_receipts,
        rules=dict(rules),
        hints=tuple(hints),
    )


def _row(said: Said) -> BacktestVote:
    vote, decision = said.vote, said.decision
    return BacktestVote(
        tick=said.tick,
        actuator=vote.actuator,
        stance=vote.stance,
        value=vote.value,
        confidence=vote.confidence,
        target=vote.target,
        expected_change=vote.expected_change,
        horizon=vote.horizon,
        rationale=vote.rationale,
        verdict=decision.verdict if decision else None,
        decided_value=decision.value if decision else None,
        reason=decision.reason if decision else None,
        change_in_recording=said.happened,
        carried_out_in_recording=said.carried_out,
    )


def _counts(found: Findings) -> tuple[int, float | None, dict[str, int]]:
    """Proposals, how many per 1000 ticks, and the verdicts on them."""
    proposals = [said for said in found.said if said.vote.stance == "propose"]
    verdicts = {said.decision.id: said.decision.verdict for said in proposals if said.decision}
    rate = round(1000 * len(proposals) / found.ticks, 3) if found.ticks else None
    return len(proposals), rate, {one: list(verdicts.values()).count(one) for one in sorted(set(verdicts.values()))}


def lines(found: Findings) -> list[str]:
    """In words, each line as long as it comes."""
    proposals, per_thousand, verdicts = _counts(found)
    out = [f"{found.agent} over {found.run}, {found.ticks} ticks"]
    if found.cannot_fire:
        out.append(f"cannot fire: {found.cannot_fire}")
    for said in found.said:
        out += _vote(said)
    rate = f", {per_thousand:g} per 1000 ticks" if proposals and per_thousand is not None else ""
    decisions = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()) or "none decided"
    votes = len(found.said)
    out.append(
        f"{votes} vote{'s' * (votes != 1)}, {proposals} of them proposal{'s' * (proposals != 1)}{rate}; on those: "
        f"{decisions}"
    )
    if found.took_part:
        same = "the same votes" if found.same_votes else "other votes"
        out.append(f"it took part in the recording with {same}" + (" (the graph's evidence apart)" * bool(found.said)))
    if found.shadow:
        out.append("it was a shadow there; here its votes count")
    out += [f"notice at tick {tick}: {text}" for tick, text in found.notices]
    if found.problems:
        times = {1: "once", 2: "twice"}.get(len(found.problems), f"{len(found.problems)} times")
        out.append(f"it raised {times}, first: {found.problems[0].strip().splitlines()[-1]}")
    if found.divergences:
        first = found.divergences[0]
        out += [
            f"first divergence: tick {first.tick}, {first.actuator}",
            f"  recorded: {spoken(first.logged)}",
            f"  here: {spoken(first.computed)}",
        ]
    else:
        out.append("no divergence: every decision is the recorded one")
    if any(said.happened is not None for said in found.said):
        out.append(
            "* what the target did from the vote to its horizon, without the vote's change unless marked † (the "
            "recording carried the same decision out)"
        )
    return [*out, OPEN_LOOP]


def _vote(said: Said) -> list[str]:
    vote, decision = said.vote, said.decision
    word = vote.stance if vote.value is None else f"{vote.stance} {show(vote.value)}"
    verdict = decision.verdict if decision else "not counted" if not said.ballot else "still open"
    why = decision.reason.rsplit("; ", 1)[-1] if decision else ""
    out = [
        f"tick {said.tick}: {word} for {vote.actuator} at {vote.confidence:.2f}; {verdict}{f': {why}' if why else ''}"
    ]
    out.append(f"  why: {vote.rationale}")
    if vote.target:
        forecast = f" {vote.expected_change:+.3g} in {vote.horizon} ticks" if vote.horizon else ""
        happened = "" if said.happened is None else f"; recorded*: {said.happened:+.3g}" + "†" * said.carried_out
        out.append(f"  forecast: {vote.target}{forecast}{happened}")
    return out
