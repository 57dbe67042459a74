"""`PromptSource`: the prompts of a training, by topic; others may be added while it continues.

    source = oven.PromptSource({"sums": "sums.jsonl", "proofs": [...]}, weights={"sums": 3, "proofs": 1}, seed=0)
    trainer = GRPOTrainer(train_dataset=source.dataset, ...)
    oven.attach(trainer, mixture=source)                       # announces data.mixture, and resumes exactly
    source.inject(["What is 7 × 8?"], by="ann", why="times tables lag", topic="sums")

In your own loop `source.take(4)` gives the prompts of a step, `state_dict` and `load_state_dict` the place, and
`source.log_to(client)` puts injections into the log.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.announcements import PromptsInjected
from oven_core.protocol.messages import LearnerMessage
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.hf.prompts.authored import AuthoredPrompts
from oven_learner.hf.prompts.injected import InjectedPrompts, Injection
from oven_learner.hf.prompts.reading import PROMPT, TOPIC, Prompts, Row, checked, digest, is_text, read

log = logging.getLogger("oven.learner")

ONLY = "prompts"
"""The topic of prompts that name none."""
CAP = 256
"""Injected prompts that are held."""
SHARE = 0.25
"""Of a topic's draws, that go to the injected prompts while there are any: among ten thousand others of equal chance
they would not be seen for thousands of steps."""
MOST = 1000
"""Prompts in one injection: their hashes are one message of the log, 35 bytes each."""


class Speaker(Protocol):
    """What injections are said by: an `OvenClient`."""

    tick: int
    step: int

    def publish_message(self, kind: type[LearnerMessage], **fields: Any) -> None:
        """Put a message into the log."""


class PromptSource(Mixture):
    """A mixture of topics whose rows are prompts. Chunk k follows from the seed, its position, the weights and the
    injected prompts then in force: what a checkpoint keeps of these lets a resumed run draw the same ones.

    Each row is a dictionary with `prompt` (text or messages), `topic`, and every column that any of the prompts has,
    None where a prompt lacks it. `inject` is called on the training's thread, between two steps, on all ranks alike.
    """

    def __init__(
        self,
        prompts: Prompts | Mapping[str, Prompts],
        *,
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
        cap: int = CAP,
        share: float = SHARE,
        held_out: Iterable[str] = (),
    ) -> None:
        """`prompts`: a list, a JSONL file, a folder of the `datasets` library or a function that returns prompts, whose
        rows may name their `topic`; or topic → one of these. `weights` default to the topics' sizes. Of injected
        prompts `cap` are held, and `share` of a topic's draws go to them while it has any. `held_out`: prompts that the
        run is measured on; one that an author writes may not quote them.

        Raises ConfigError for no prompts, what is not a prompt (with its place), a topic that is there twice, and
        weights, a cap or a share that cannot be; UnknownNameError for weights of a topic that is not there.
        """
        if not 1 <= cap <= 100_000 or cap != int(cap):
            raise ConfigError(f"cap={cap!r} is not a number of injected prompts; give a whole one from 1 to 100,000")
        if not 0 < share <= 1:
            raise ConfigError(
                f"share={share!r} of the draws cannot go to injected prompts; give more than 0, at most 1"
            )
        topics = _by_topic(prompts)
        for name in weights or {}:
            if name not in topics:
                raise UnknownNameError("topic", name, topics)
        if weights is not None and not (math.isfinite(total := math.fsum(weights.values())) and total > 0):
            raise ConfigError(f"the weights {dict(weights)} sum to {total:g}; give finite ones of a positive sum")
        rows = [row for of_topic in topics.values() for row in of_topic]
        self._text = _one_form(rows)
        self._columns = tuple(dict.fromkeys(name for row in rows for name in row))
        super().__init__(topics, weights, seed=seed)
        self._rows = [self._whole(row) for row in rows]
        self._share = share
        self._injected = InjectedPrompts(cap)
        self.held_out = tuple(held_out)
        self.authored = AuthoredPrompts()
        self.references = frozenset(
            name
            for name in self._columns
            if name not in (PROMPT, TOPIC) and all(row[name] is not None for row in self._rows)
        )
        """Columns that each prompt of the data has, such as the answer. Authored prompts lack them."""
        self.fingerprint = digest([digest(row) for row in self._rows])
        """Of the source's own prompts and their columns."""
        self._speaker: Speaker | None = None
        self._unsaid: list[Injection] = []
        self.read.grow(self._injected.places + self.authored.pool.places)
        self.dataset, self.epoch = self._as_dataset()

    @property
    def held(self) -> int:
        """Injected prompts that can be drawn."""
        return len(self._injected)

    def inject(self, prompts: Sequence[Any], *, by: str, why: str, topic: str | None = None) -> Injection:
        """Add prompts to those of a topic, from the next chunk on that is not drawn yet. Beyond the cap the oldest
        injected ones go, and the answer says how many. The log gets who, why and the prompts' hashes, and no text.

        Raises ConfigError, with nothing changed, for no prompts or too many, what is not a prompt or has another form
        than the source's, and without a `by`, a `why`, or a topic where there are several; UnknownNameError for a topic
        or a column that is not there.
        """
        for name, said, limit in (("by", by, 64), ("why", why, 2000)):
            if not isinstance(said, str) or not said.strip() or len(said) > limit:
                raise ConfigError(f"{name}={said!r}: say {name} in 1 to {limit} characters; the log keeps it")
        if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Sequence):
            raise ConfigError(f"injected prompts are {type(prompts).__name__}; give a list of them")
        if not 1 <= len(prompts) <= MOST:
            raise ConfigError(f"{len(prompts)} prompts are to be injected; give 1 to {MOST} at a time")
        if topic is None and len(self.names) > 1:
            raise ConfigError(f"name the topic that draws the prompts; there are {', '.join(self.names)}")
        if topic is not None and topic not in self.names:
            raise UnknownNameError("topic", topic, self.names)
        rows = [self._admitted(one, index) for index, one in enumerate(prompts)]
        named = topic or self.names[0]
        rows = [{**row, TOPIC: named} for row in rows]
        injection = self._add(self._injected, len(self._rows), by, why, rows)
        if injection.evicted:
            log.warning("%d injected prompts made room; %d are held at most", injection.evicted, self._injected.cap)
        return injection

    def add_authored(self, prompts: Sequence[str], *, by: str, why: str, topic: str) -> Injection:
        """Hold prompts of an author's, which were admitted, for `data.authored_share` of the topic's draws. The log
        gets what it gets of an injection."""
        ask = str if self._text else _as_message
        rows = [{**self._whole({PROMPT: ask(prompt)}), TOPIC: topic} for prompt in prompts]
        return self._add(self.authored.pool, len(self._rows) + self._injected.places, by, why, rows)

    def own_prompts(self, topic: str | None = None) -> list[Any]:
        """The prompts of the source's own data, in order; of one topic, or all."""
        return [row[PROMPT] for row in self._rows if topic in (None, row[TOPIC])]

    def set_authored_share(self, share: float) -> None:
        """What share of a topic's draws goes to authored prompts, from the next chunk on that is not drawn yet."""
        self.authored.set_share(share, self.next_chunk)

    def _add(self, pool: InjectedPrompts, first: int, by: str, why: str, rows: Sequence[Row]) -> Injection:
        """`first`: the place in the dataset at which the pool's own begin. The rows are of one topic."""
        topic = rows[0][TOPIC]
        places, evicted = pool.add(topic, rows, self.next_chunk)
        for place in places:
            self.read.forget(first + place)
        injection = Injection(by, why, topic, tuple(digest(row[PROMPT]) for row in rows), len(pool), evicted)
        log.info("%s added %d prompts to %s: %s", by, len(rows), topic, why)
        self._unsaid.append(injection)
        self._say()
        return injection

    def log_to(self, speaker: Speaker) -> None:
        """Put injections into this client's log, those first that no log has yet. `attach` does it by itself."""
        self._speaker = speaker
        self._say()

    def take(self, count: int) -> list[Row]:
        """The next chunk of so many prompts, for an own loop."""
        if count < 1:
            raise ConfigError(f"{count} prompts cannot be taken; give 1 or more")
        return [self.row(row) for row in self.draw(self.next_chunk, count)]

    def __iter__(self) -> Iterator[Row]:
        """One prompt after another, without end."""
        while True:
            yield from self.take(1)

    def row(self, index: int) -> Row:
        """The prompt at a place of the dataset: behind the source's own lie those that were injected."""
        own = len(self._rows)
        if index < own:
            return self._rows[index]
        # A sampler that is not ours may draw a place where nothing lies.
        place = index - own - self._injected.places
        found = self._injected.row(index - own) if place < 0 else self.authored.pool.row(place)
        return found or self._rows[(index - own) % own]

    def pick(self, rng: random.Random, name: str, chunk: int) -> int:
        """As a mixture does, where nothing was injected and no share goes to authored prompts."""
        share, authored = self.authored.drawable(name, chunk)
        if authored and rng.random() < share:
            return len(self._rows) + self._injected.places + rng.choice(authored)
        places = self._injected.drawable(name, chunk)
        if places and rng.random() < self._share:
            return len(self._rows) + rng.choice(places)
        return super().pick(rng, name, chunk)

    def check_loader(self, args: Any) -> None:
        """Raises ConfigError for a loader in other processes, which hear of no injection."""
        if args.dataloader_num_workers:
            raise ConfigError(
                f"dataloader_num_workers={args.dataloader_num_workers}: processes of the loader would not see injected "
                "prompts; leave it at 0"
            )

    def state_dict(self) -> dict[str, Any]:
        """A mixture's, and the injected and authored prompts with their text. Plain values and tensors."""
        added = {"injected": self._injected.state(), "authored": self.authored.state()}
        return {**super().state_dict(), **added, "prompts": self.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was taken; what was injected here before is not any more. Raises ConfigError where
        the topics are others, or the cap is lower."""
        self._injected.load(state["injected"])
        self.authored.load(state["authored"])
        super().load_state_dict(state)
        self._unsaid.clear()
        if state["prompts"] != self.fingerprint:
            log.warning("the prompts are not those of the state that is loaded: what is drawn will differ")

    def _say(self) -> None:
        if self._speaker is None:
            return
        for one in self._unsaid:
            self._speaker.publish_message(
                PromptsInjected,
                by=one.by,
                why=one.why,
                topic=one.topic,
                hashes=one.hashes,
                held=one.held,
                evicted=one.evicted,
                tick=self._speaker.tick,
                step=self._speaker.step,
            )
        self._unsaid.clear()

    def _admitted(self, one: Any, index: int) -> Row:
        place = f"injected prompt {index}"
        row = checked(one, place)
        if unknown := next((name for name in row if name not in self._columns), None):
            raise UnknownNameError("column of the prompts", unknown, self._columns)
        if is_text(row) != self._text:
            ours, theirs = ("text", "messages") if self._text else ("messages", "text")
            raise ConfigError(f"{place} is {theirs}, and the source's prompts are {ours}; give {ours}")
        return self._whole(row)

    def _whole(self, row: Row) -> Row:
        return {name: row.get(name) for name in self._columns}

    def _as_dataset(self) -> tuple[Any, Any]:
        """All places, and those of the source's own prompts: what an epoch goes over."""
        from datasets import Dataset

        own = len(self._rows)
        added = self._injected.places + self.authored.pool.places
        places = Dataset.from_dict({"row": range(own + added)}).with_transform(_Lookup(self))
        return places, places.select(range(own))


class _Lookup:
    """Puts prompts in the place of their numbers, when they are fetched."""

    def __init__(self, source: PromptSource) -> None:
        self._source = source

    def __call__(self, batch: Mapping[str, Sequence[int]]) -> dict[str, list[Any]]:
        rows = [self._source.row(int(row)) for row in batch["row"]]
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """The library hashes it by what pickle makes of it."""
        return _elsewhere, (self._source.fingerprint,)


def _as_message(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _elsewhere(prompts: str) -> NoReturn:
    raise ConfigError(f"the prompts {prompts} live in the process that read them; set dataloader_num_workers=0")


def _by_topic(prompts: Prompts | Mapping[str, Prompts]) -> dict[str, list[Row]]:
    """In the order in which topics first come."""
    found: dict[str, list[Row]] = {}
    spelt: dict[str, str] = {}
    named = prompts if isinstance(prompts, Mapping) else {"": prompts}
    for topic, of_topic in named.items():
        called = f"topic {topic!r}" if isinstance(prompts, Mapping) else "the source"
        if isinstance(prompts, Mapping) and (not isinstance(topic, str) or not topic.strip()):
            raise ConfigError(f"{topic!r} is not a topic; give it a name")
        count = 0
        for place, row in read(of_topic, called):
            count += 1
            own = row.get(TOPIC)
            if own is not None and (not isinstance(own, str) or not own.strip()):
                raise ConfigError(f"{place} has the topic {own!r}; give a name, or leave it out")
            if topic and own is not None and own != topic:
                raise ConfigError(f"{place} is of topic {own!r}, and stands under {topic!r}; give it one of them")
            name = topic or own or ONLY
            if spelt.setdefault(name.strip().casefold(), name) != name:
                twice = spelt[name.strip().casefold()]
                raise ConfigError(f"{place}: the topics {twice!r} and {name!r} are one name twice; spell it one way")
            found.setdefault(name, []).append({**row, TOPIC: name})
        if not count:
            raise ConfigError(f"{called} has no prompts; give at least one")
    if not found:
        raise ConfigError("there are no prompts; give a list, a file, a folder, a function, or topics of these")
    return found


def _one_form(rows: Sequence[Row]) -> bool:
    """Whether all are text, or else messages. Raises ConfigError for both: a trainer takes one of them."""
    text = is_text(rows[0])
    if other := next((row for row in rows if is_text(row) != text), None):
        raise ConfigError(
            f"topic {rows[0][TOPIC]!r} has {'text' if text else 'messages'} and topic {other[TOPIC]!r} has "
            f"{'messages' if text else 'text'}; give all prompts in one form"
        )
    return text
