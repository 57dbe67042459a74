"""Ten thousand messages that should not count, over the real bus, in the middle of a real run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.attack import plain, unchanged
from tests.support.honest_run import HOSTILE, ON, TICKS, HonestRun, Played, running
from tests.support.learner_side import until
from tests.support.mutants import SIGNER, Mutants, honest_log

from oven_core.protocol import names
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import MESSAGE_ID, SIGNATURE

__all__ = ["plain"]  # a fixture

SENT = 10_000
OF_AGENTS = ("vote", "agent")


async def test_an_agent_that_says_all_that_it_can_as_fast_as_it_can(tmp_path: Path, plain: Played) -> None:
    mutants = Mutants(honest_log())
    sent: Counter[str] = Counter()
    async with running(tmp_path) as run, run.hostile() as evil:

        async def attack(run: HonestRun, step: int) -> None:
            for _ in range(SENT // TICKS + 1):
                done, event, _ = mutants.make(1)
                kind = names.kind(event.subject)
                if done == "nameless":  # no subject that could be sent
                    continue
                subject = f"{ON.base}.{kind}.{HOSTILE}" if kind in OF_AGENTS else event.subject
                headers = {MESSAGE_ID: event.message_id, SIGNATURE: event.signature}
                held = {name: value for name, value in headers.items() if value}
                await evil.client.publish(subject, event.data, headers=held or None)
                sent["to its own subjects" if kind in OF_AGENTS else "elsewhere"] += 1
            await evil.settled()

        played = await run.play(attack)
        await until(lambda: evil.refusals.total() == sent["elsewhere"], 30)
    unchanged(played, plain)
    logged = [event for event in played.events if event.author == HOSTILE]
    counted = Counter(
        {key: n for key, n in played.report.counters.items() if not key.startswith(("version.", "misplaced."))}
    )
    assert sent.total() > 0.9 * SENT and 0 < len(logged) < sent["to its own subjects"]
    assert counted.total() == len(logged), "each that came into the log is counted once, and nothing else is"
    dropped = sent["to its own subjects"] - len(logged)
    refused = sent["elsewhere"]
    print(f"{sent.total():,} sent: {refused:,} refused by the server, {dropped:,} dropped, {len(logged):,} counted")


async def test_what_would_get_past_the_servers_permissions(tmp_path: Path, plain: Played) -> None:
    """As if the server had been made to write anywhere: forged events on every subject, and on the one of the very next
    decision, unsigned or signed by another. Only the signature stands between."""
    put = 0
    async with running(tmp_path) as run, run.bus() as admin:
        signer = SIGNER["thief"]

        async def attack(run: HonestRun, step: int) -> None:
            nonlocal put
            head = await admin.head("r")
            mutants = Mutants([event for event in honest_log() if names.kind(event.subject) not in OF_AGENTS])
            mutants.makers = (mutants.unsigned, mutants.wrongly_signed, mutants.transplanted, mutants.altered)
            for _ in range(20):
                _, event, _ = mutants.make(1)
                headers = {SIGNATURE: event.signature} if event.signature and event.signature.isascii() else None
                await admin.client.jetstream().publish(event.subject, event.data, headers=headers)
                put += 1
            _, event, _ = mutants.make(1)
            for number in range(head + 20, head + 30):
                for subject in (ON.decision(f"{number:012d}-00"), ON.decision(f"{number:012d}-01"), ON.step(step)):
                    signature = signer.sign(subject, "", event.data)
                    await admin.client.jetstream().publish(subject, event.data, headers={SIGNATURE: signature})
                    put += 1

        played = await run.play(attack)
    assert played.accepted == plain.accepted
    assert played.report.same and played.report.finished, played.report
    skipped = [event for event in played.events if isinstance(event.body, Malformed)]
    assert len(skipped) == put > 1000
    counters = played.report.counters
    assert sum(n for key, n in counters.items() if key.startswith("malformed.")) == put
