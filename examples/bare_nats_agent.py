"""An agent without the SDK, with nats-py and JSON. You can write one like it in any language that has a NATS client.

It reviews other agents' proposals. While the loss falls, it votes with low confidence to leave the run alone. While the
loss is far above its best, it raises an alert.

It reads OVEN_URL, OVEN_RUN and OVEN_CREDS (an nkey seed; the file's stem is this agent's name).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from statistics import fmean
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

SEED = Path(os.environ["OVEN_CREDS"])
NAME = SEED.stem
BASE = f"oven.{os.environ['OVEN_RUN']}"
HEARTBEAT_TICKS = 10


class Reviewer:
    """Votes on ballots. `hear` takes an event and returns messages to publish: (subject, message)."""

    def __init__(self) -> None:
        self.latest = (0, -1)  # (incarnation, n) of the learner's newest message: an older one is a duplicate
        self.lockstep = False
        self.losses: list[float] = []
        self.tick = self.said = 0
        self.alarmed = False
        self.seen = ""  # the newest ballot that was handled

    def hear(self, event: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        if "incarnation" in event:
            if (event["incarnation"], event["n"]) <= self.latest:
                return []
            self.latest = (event["incarnation"], event["n"])
        match event["type"]:
            case "RunStarted":
                self.lockstep = event["lockstep"]
            case "Observation":
                self.tick = event["tick"]
                if "loss" in event["metrics"]:
                    self.losses = [*self.losses, float(event["metrics"]["loss"])][-20:]  # "NaN" comes as a string
                said = self.alert()
                if self.lockstep or self.tick >= self.said + HEARTBEAT_TICKS:
                    said.append(self.status("done"))
                return said
            case "BallotOpened" if event["id"] > self.seen:
                self.seen = event["id"]
                return [self.answer(event), self.status("done")]
        return []

    def alert(self) -> list[tuple[str, dict[str, Any]]]:
        """Raise an alert at twice the best of the last losses, and clear it at 1.5 times that."""
        if len(self.losses) < 20 or min(self.losses) <= 0:
            return []
        now, best = fmean(self.losses[-3:]), min(self.losses)
        if self.alarmed == (now > (1.5 if self.alarmed else 2.0) * best):
            return []
        self.alarmed = not self.alarmed
        alert: dict[str, Any] = {"type": "Alert", "state": "raised" if self.alarmed else "cleared"}
        alert |= {"symptom": "loss_spike", "metric": "loss", "value": now, "expected": 2.0 * best, "tick": self.tick}
        return [(f"{BASE}.alert.{NAME}", alert)]

    def answer(self, ballot: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        half = len(self.losses) // 2
        falls = half > 0 and fmean(self.losses[half:]) < fmean(self.losses[:half])
        vote = {"type": "Vote", "actuator": ballot["actuator"], "ballot": ballot["id"], "tick": self.tick}
        if falls:
            vote |= {"stance": "against", "confidence": 0.3, "rationale": "the loss falls: leave it alone"}
        else:
            vote |= {"stance": "for", "confidence": 0.6, "rationale": "the loss does not fall: try it"}
        return f"{BASE}.vote.{NAME}", vote

    def status(self, state: str) -> tuple[str, dict[str, Any]]:
        self.said = self.tick
        message = {"type": "AgentStatus", "state": state, "tick": self.tick, "seen": self.seen, "needs": ["loss"]}
        return f"{BASE}.agent.{NAME}", message


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    reviewer, events = Reviewer(), asyncio.Queue[dict[str, Any]]()

    async def take(message: Any) -> None:
        events.put_nowait(json.loads(message.data))

    async def say(subject: str, message: dict[str, Any]) -> None:
        await bus.publish(subject, json.dumps(message).encode())

    seed = SEED.read_text().strip()
    bus = await nats.connect(os.environ["OVEN_URL"], name=NAME, nkeys_seed_str=seed, inbox_prefix=f"_INBOX_.{NAME}")
    # Live first, history second: no message is missed, and duplicates are dropped.
    for kind in ("run", "observation", "ballot.*"):
        await bus.subscribe(f"{BASE}.{kind}", cb=take)
    await bus.flush()
    await say(*reviewer.status("joined"))
    for event in await history(bus):
        reviewer.hear(event)
    await say(*reviewer.status("done"))
    stopping = asyncio.create_task(stop.wait())
    while not stop.is_set():
        coming = asyncio.create_task(events.get())
        await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if coming.done():
            for subject, message in reviewer.hear(coming.result()):
                await say(subject, message)
        else:
            coming.cancel()
    await say(*reviewer.status("left"))
    await bus.drain()


async def history(bus: Client) -> list[dict[str, Any]]:
    """Return the events so far. A replica of the mesh answers, in batches."""
    found: list[dict[str, Any]] = []
    after = 0
    while True:
        try:
            reply = await bus.request(f"{BASE}.history", json.dumps({"after": after}).encode(), timeout=2)
        except NatsError:
            return found  # no mesh yet: this agent knows only later events
        batch = json.loads(reply.data)
        found += [json.loads(entry["body"]) for entry in batch["events"]]
        after = batch["events"][-1]["seq"] if batch["events"] else batch["head"]
        if after >= batch["head"]:
            return found


if __name__ == "__main__":
    asyncio.run(main())
