"""`PromptSource`: training prompts by topic. More can be added during the run.

    source = oven.PromptSource({"sums": "sums.jsonl", "proofs": [...]}, weights={"sums": 3, "proofs": 1}, seed=0)
    trainer = GRPOTrainer(train_dataset=source.dataset, ...)
    oven.attach(trainer, mixture=source)                       # announces data.mixture, and resumes exactly
    source.inject(["What is 7 × 8?"], by="ann", why="times tables lag", topic="sums")

In your own loop, `source.take(4)` returns the prompts of a step, and `source.log_to(client)` writes injections to the
log. `state_dict` and `load_state_dict` save and restore the position.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.announcements import PromptsInjected
from oven_learner.client.client import OvenClient
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.hf.prompts.authored import AuthoredPrompts
from oven_learner.hf.prompts.injected import InjectedPrompts, Injection
from oven_learner.hf.prompts.prompt_rows import PROMPT, TOPIC, Prompts, Row, checked, digest, is_text, read

log = logging.getLogger("oven.learner")

DEFAULT_TOPIC = "prompts"
"""Default topic for prompts without a topic."""
CAP = 256
"""Maximum stored injected prompts."""
SHARE = 0.25
"""Fraction of a topic's draws used for injected prompts, if there are any. With equal chances among ten thousand
others, they would not be drawn for thousands of steps."""
MOST = 1000
"""Maximum prompts per injection. Their hashes go into one log message, at 35 bytes each."""


class PromptSource(Mixture):
    """A mixture of topics whose rows are prompts.

    Chunk k is a function of the seed, its position, and the weights and injected prompts at that time. A checkpoint
    keeps these, so that a resumed run draws the same prompts. Each row is a dictionary with `prompt` (text or
    messages), `topic`, and every column that any of the prompts has; None if a prompt lacks it. Call `inject` on the
    training thread, between two steps, on all ranks alike.
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
        """Args:
        prompts: a list, a JSONL file, a folder of the `datasets` library, or a function that returns prompts. Rows may
            name their `topic`. Or a mapping from topic to one of these.
        weights: by topic; default to the sizes of the topics.
        cap: the most injected prompts that are held.
        share: the share of a topic's draws that goes to injected prompts while it has any.
        held_out: prompts that the run is measured on. Authored prompts may not quote them.

        Raises ConfigError without prompts, for an invalid prompt (with its location), for one topic under two
        spellings, and for invalid weights, cap or share. Raises UnknownNameError for weights of an unknown topic.
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
        rows = [row for of_topic in topics.values() for row in of_topic]
        self._is_text = _are_text(rows)
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
        """Columns that every prompt of the data has, such as the answer. Authored prompts lack them."""
        self.fingerprint = digest([digest(row) for row in self._rows])
        """A hash of the source's own prompts and their columns."""
        self._client: OvenClient | None = None
        self._unpublished: list[Injection] = []
        self.read.grow(self._injected.slots + self.authored.pool.slots)
        self.dataset, self.epoch = self._as_dataset()

    @property
    def held(self) -> int:
        return len(self._injected)

    def inject(self, prompts: Sequence[Any], *, by: str, why: str, topic: str | None = None) -> Injection:
        """Add prompts to a topic, from the next chunk that is not drawn yet. Beyond the cap the oldest are evicted.

        The log gets `by`, `why` and the hashes of the prompts, but no text. Raises ConfigError with nothing changed for
        no prompts or too many, for invalid prompts or another form than the source's, and without a `by`, a `why`, or a
        topic if there are several. Raises UnknownNameError for an unknown topic or column.
        """
        for name, text, limit in (("by", by, 64), ("why", why, 2000)):
            if not isinstance(text, str) or not text.strip() or len(text) > limit:
                raise ConfigError(f"{name}={text!r}: say {name} in 1 to {limit} characters; the log keeps it")
        if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Sequence):
            raise ConfigError(f"injected prompts are {type(prompts).__name__}; give a list of them")
        if not 1 <= len(prompts) <= MOST:
            raise ConfigError(f"{len(prompts)} prompts are to be injected; give 1 to {MOST} at a time")
        if topic is None and len(self.names) > 1:
            raise ConfigError(f"name the topic that draws the prompts; there are {', '.join(self.names)}")
        if topic is not None and topic not in self.names:
            raise UnknownNameError("topic", topic, self.names)
        rows = [
            {**self._checked_row(prompt, index), TOPIC: topic or self.names[0]} for index, prompt in enumerate(prompts)
        ]
        injection = self._add(self._injected, len(self._rows), by, why, rows)
        if injection.evicted:
            log.warning("%d injected prompts made room; %d are held at most", injection.evicted, self._injected.cap)
        return injection

    def add_authored(self, prompts: Sequence[str], *, by: str, why: str, topic: str) -> Injection:
        """Hold accepted prompts of an author for `data.authored_share` of the topic's draws, and log them like an
        injection."""
        contents: list[Any] = list(prompts) if self._is_text else [[{"role": "user", "content": p}] for p in prompts]
        rows = [{**self._whole({PROMPT: content}), TOPIC: topic} for content in contents]
        return self._add(self.authored.pool, len(self._rows) + self._injected.slots, by, why, rows)

    def own_prompts(self, topic: str | None = None) -> list[Any]:
        """Return the prompts of the source's own data, in order; of one topic, or all."""
        return [row[PROMPT] for row in self._rows if topic in (None, row[TOPIC])]

    def _add(self, pool: InjectedPrompts, first: int, by: str, why: str, rows: Sequence[Row]) -> Injection:
        """Add rows of one topic to a pool, whose slots begin at row `first` of the dataset."""
        topic = rows[0][TOPIC]
        slots, evicted = pool.add(topic, rows, self.next_chunk)
        for slot in slots:
            self.read.forget(first + slot)
        injection = Injection(by, why, topic, tuple(digest(row[PROMPT]) for row in rows), len(pool), evicted)
        log.info("%s added %d prompts to %s: %s", by, len(rows), topic, why)
        self._unpublished.append(injection)
        self._publish()
        return injection

    def log_to(self, client: OvenClient) -> None:
        """Put injections into this client's log, beginning with those that no log has yet. `attach` does this
        itself."""
        self._client = client
        self._publish()

    def take(self, count: int) -> list[Row]:
        """Return the next chunk, of `count` prompts, for your own loop."""
        if count < 1:
            raise ConfigError(f"{count} prompts cannot be taken; give 1 or more")
        return [self.row(row) for row in self.draw(self.next_chunk, count)]

    def __iter__(self) -> Iterator[Row]:
        """Yield one prompt after another, without end."""
        while True:
            yield from self.take(1)

    def row(self, index: int) -> Row:
        """Return the prompt at a row of the dataset. Injected prompts come after the source's own."""
        own = len(self._rows)
        if index < own:
            return self._rows[index]
        authored_slot = index - own - self._injected.slots
        row = self._injected.row(index - own) if authored_slot < 0 else self.authored.pool.row(authored_slot)
        return row or self._rows[(index - own) % own]  # another sampler may draw an empty slot

    def pick(self, rng: random.Random, name: str, chunk: int) -> int:
        """Draw like a mixture, if nothing is injected and no share goes to authored prompts."""
        share, authored = self.authored.drawable(name, chunk)
        if authored and rng.random() < share:
            return len(self._rows) + self._injected.slots + rng.choice(authored)
        injected = self._injected.drawable(name, chunk)
        if injected and rng.random() < self._share:
            return len(self._rows) + rng.choice(injected)
        return super().pick(rng, name, chunk)

    def check_loader(self, args: Any) -> None:
        """Raise ConfigError for a loader in other processes, which would not get injected prompts."""
        if args.dataloader_num_workers:
            raise ConfigError(
                f"dataloader_num_workers={args.dataloader_num_workers}: processes of the loader would not see injected "
                "prompts; leave it at 0"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return a mixture's state, and the injected and authored prompts with their text, as plain values and
        tensors."""
        added = {"injected": self._injected.state(), "authored": self.authored.state()}
        return {**super().state_dict(), **added, "prompts": self.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; prompts injected here before are dropped. Raises ConfigError if the topics differ, or the
        cap is lower."""
        self._injected.load(state["injected"])
        self.authored.load(state["authored"])
        super().load_state_dict(state)
        self._unpublished.clear()
        if state["prompts"] != self.fingerprint:
            log.warning("the prompts are not those of the state that is loaded: what is drawn will differ")

    def _publish(self) -> None:
        client = self._client
        if client is not None:
            for injection in self._unpublished:
                client.publish_message(PromptsInjected, **asdict(injection), tick=client.tick, step=client.step)
            self._unpublished.clear()

    def _checked_row(self, prompt: Any, index: int) -> Row:
        location = f"injected prompt {index}"
        row = checked(prompt, location)
        if unknown := next((name for name in row if name not in self._columns), None):
            raise UnknownNameError("column of the prompts", unknown, self._columns)
        if is_text(row) != self._is_text:
            ours, theirs = ("text", "messages") if self._is_text else ("messages", "text")
            raise ConfigError(f"{location} is {theirs}, and the source's prompts are {ours}; give {ours}")
        return self._whole(row)

    def _whole(self, row: Row) -> Row:
        return {name: row.get(name) for name in self._columns}

    def _as_dataset(self) -> tuple[Any, Any]:
        """Return the dataset of all rows, and that of the source's own rows, which the loader reads."""
        from datasets import Dataset

        own = len(self._rows)
        slots = self._injected.slots + self.authored.pool.slots
        rows = Dataset.from_dict({"row": range(own + slots)}).with_transform(_Lookup(self))
        return rows, rows.select(range(own))


class _Lookup:
    """Replaces row numbers with prompts when they are fetched."""

    def __init__(self, source: PromptSource) -> None:
        self._source = source

    def __call__(self, batch: Mapping[str, Sequence[int]]) -> dict[str, list[Any]]:
        rows = [self._source.row(int(row)) for row in batch["row"]]
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """The datasets library hashes its pickle."""
        return _fail_in_worker, (self._source.fingerprint,)


def _fail_in_worker(prompts: str) -> NoReturn:
    raise ConfigError(f"the prompts {prompts} live in the process that read them; set dataloader_num_workers=0")


def _by_topic(prompts: Prompts | Mapping[str, Prompts]) -> dict[str, list[Row]]:
    """Return topic → rows, in the order in which topics first appear."""
    rows: dict[str, list[Row]] = {}
    spellings: dict[str, str] = {}
    sources = prompts if isinstance(prompts, Mapping) else {"": prompts}
    for topic, source in sources.items():
        source_name = f"topic {topic!r}" if isinstance(prompts, Mapping) else "the source"
        if isinstance(prompts, Mapping) and (not isinstance(topic, str) or not topic.strip()):
            raise ConfigError(f"{topic!r} is not a topic; give it a name")
        count = 0
        for location, row in read(source, source_name):
            count += 1
            own = row.get(TOPIC)
            if own is not None and (not isinstance(own, str) or not own.strip()):
                raise ConfigError(f"{location} has the topic {own!r}; give a name, or leave it out")
            if topic and own is not None and own != topic:
                raise ConfigError(f"{location} is of topic {own!r}, and stands under {topic!r}; give it one of them")
            name = topic or own or DEFAULT_TOPIC
            spelling = spellings.setdefault(name.strip().casefold(), name)
            if spelling != name:
                raise ConfigError(
                    f"{location}: the topics {spelling!r} and {name!r} are one name twice; spell it one way"
                )
            rows.setdefault(name, []).append({**row, TOPIC: name})
        if not count:
            raise ConfigError(f"{source_name} has no prompts; give at least one")
    if not rows:
        raise ConfigError("there are no prompts; give a list, a file, a folder, a function, or topics of these")
    return rows


def _are_text(rows: Sequence[Row]) -> bool:
    """Whether all prompts are text rather than messages. Raises ConfigError for both: a trainer accepts one form."""
    text = is_text(rows[0])
    if differing := next((row for row in rows if is_text(row) != text), None):
        raise ConfigError(
            f"topic {rows[0][TOPIC]!r} has {'text' if text else 'messages'} and topic {differing[TOPIC]!r} has "
            f"{'messages' if text else 'text'}; give all prompts in one form"
        )
    return text
