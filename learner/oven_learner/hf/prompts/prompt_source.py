"""Training prompts by topic, with `PromptSource`. Prompts can be added during the run.

    source = oven.PromptSource({"sums": "sums.jsonl", "proofs": [...]}, weights={"sums": 3, "proofs": 1}, seed=0)
    trainer = GRPOTrainer(train_dataset=source.dataset, ...)
    oven.attach(trainer, mixture=source)                       # adds the knob data.mixture, and resumes exactly
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
from oven_learner.client.oven_client import OvenClient
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.hf.prompts.injected_prompts import InjectedPrompts, Injection
from oven_learner.hf.prompts.prompt_admission import AuthoredPrompts
from oven_learner.hf.prompts.prompt_rows import PROMPT, TOPIC, Prompts, Row, digest, is_text, read, validate_row

log = logging.getLogger("oven.learner")

DEFAULT_TOPIC = "prompts"
"""Default topic for prompts without a topic."""
DEFAULT_CAP = 256
"""Maximum number of stored injected prompts."""
DEFAULT_SHARE = 0.25
"""Share of a topic's draws that injected prompts get, if there are any. With the same probability as ten thousand other
prompts, an injected prompt would not be drawn for thousands of steps."""
MAX_PER_INJECTION = 1000
"""Maximum number of prompts per injection. Their hashes are logged in one message, with 35 bytes each."""


class PromptSource(Mixture):
    """A mixture of topics whose rows are prompts.

    Chunk k depends only on the seed, its position, and the weights and injected prompts at that time. A checkpoint
    contains these, so that a resumed run draws the same prompts. Each row is a dictionary with `prompt` (text or
    messages), `topic`, and every column that any prompt has, or None if the prompt lacks it. Call `inject` in the
    training thread, between two steps, with the same arguments on all ranks.
    """

    def __init__(
        self,
        prompts: Prompts | Mapping[str, Prompts],
        *,
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
        cap: int = DEFAULT_CAP,
        share: float = DEFAULT_SHARE,
        held_out: Iterable[str] = (),
    ) -> None:
        """Args:
        prompts: a list, a JSONL file, a folder of the `datasets` library, a function that returns prompts, or a mapping
            from topic to one of these. Rows may name their `topic`.
        weights: weights by topic. The default is the sizes of the topics.
        cap: maximum number of injected prompts that are stored.
        share: share of a topic's draws that injected prompts get, if there are any.
        held_out: prompts used for evaluation. Authored prompts must not quote them.

        Raises ConfigError if there are no prompts, and for an invalid prompt (with its location), two spellings of a
        topic, or invalid weights, cap or share. Raises UnknownNameError for weights of an unknown topic.
        """
        if not 1 <= cap <= 100_000 or cap != int(cap):
            raise ConfigError(f"cap={cap!r} is invalid; give a whole number from 1 to 100,000")
        if not 0 < share <= 1:
            raise ConfigError(f"share={share!r} is invalid; give more than 0 and at most 1")
        topics = _read_by_topic(prompts)
        for name in weights or {}:
            if name not in topics:
                raise UnknownNameError("topic", name, topics)
        rows = [row for topic_rows in topics.values() for row in topic_rows]
        self._is_text = _are_text(rows)
        self._columns = tuple(dict.fromkeys(name for row in rows for name in row))
        super().__init__(topics, weights, seed=seed)
        self._rows = [self._with_all_columns(row) for row in rows]
        self._share = share
        self._injected = InjectedPrompts(cap)
        self.held_out = tuple(held_out)
        self.authored = AuthoredPrompts()
        self.reference_columns = frozenset(
            name
            for name in self._columns
            if name not in (PROMPT, TOPIC) and all(row[name] is not None for row in self._rows)
        )
        """Columns that every prompt in the data has, such as the answer. Authored prompts do not have them."""
        self.fingerprint = digest([digest(row) for row in self._rows])
        """Hash of the data's prompts and columns, without added prompts."""
        self._client: OvenClient | None = None
        self._unpublished: list[Injection] = []
        self.read_rows.grow(self._injected.slots + self.authored.pool.slots)
        self.dataset, self.epoch_dataset = self._as_dataset()

    @property
    def held(self) -> int:
        """Number of injected prompts that can be drawn now."""
        return len(self._injected)

    def inject(self, prompts: Sequence[Any], *, by: str, why: str, topic: str | None = None) -> Injection:
        """Add prompts to a topic, from the next chunk that has not been drawn yet. Beyond the cap, the oldest are
        evicted.

        Logs `by`, `why` and the hashes of the prompts, but no text. Raises ConfigError for invalid arguments, too many
        prompts, invalid prompts, prompts in a different form than the data, or no `topic` if there are several. Raises
        UnknownNameError for an unknown topic or column. If it raises, nothing has changed.
        """
        for name, argument, limit in (("by", by, 64), ("why", why, 2000)):
            if not isinstance(argument, str) or not argument.strip() or len(argument) > limit:
                raise ConfigError(f"{name}={argument!r} must have 1 to {limit} characters; it is logged")
        if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Sequence):
            raise ConfigError(f"the injected prompts have the type {type(prompts).__name__}; give a list")
        if not 1 <= len(prompts) <= MAX_PER_INJECTION:
            raise ConfigError(f"cannot inject {len(prompts)} prompts; give 1 to {MAX_PER_INJECTION} at a time")
        if topic is None and len(self.names) > 1:
            raise ConfigError(f"topic= is missing; choose from {', '.join(self.names)}")
        if topic is not None and topic not in self.names:
            raise UnknownNameError("topic", topic, self.names)
        rows = [
            {**self._injected_row(prompt, index), TOPIC: topic or self.names[0]} for index, prompt in enumerate(prompts)
        ]
        injection = self._add(self._injected, len(self._rows), by, why, rows)
        if injection.evicted:
            log.warning("evicted %d injected prompts, because the cap is %d", injection.evicted, self._injected.cap)
        return injection

    def add_authored(self, prompts: Sequence[str], *, by: str, why: str, topic: str) -> Injection:
        """Add accepted prompts from an author, and log them like an injection. `data.authored_share` sets their share
        of the topic's draws."""
        contents = [text if self._is_text else [{"role": "user", "content": text}] for text in prompts]
        rows = [{**self._with_all_columns({PROMPT: content}), TOPIC: topic} for content in contents]
        return self._add(self.authored.pool, len(self._rows) + self._injected.slots, by, why, rows)

    def data_prompts(self, topic: str | None = None) -> list[Any]:
        """Return the prompts in the data, without added prompts, in order. `topic` selects one topic."""
        return [row[PROMPT] for row in self._rows if topic in (None, row[TOPIC])]

    def _add(self, pool: InjectedPrompts, first_row: int, by: str, why: str, rows: Sequence[Row]) -> Injection:
        """Add rows of the same topic to a pool, whose slots begin at `first_row` of the dataset."""
        topic = rows[0][TOPIC]
        slots, evicted = pool.add(topic, rows, self.next_chunk)
        for slot in slots:
            self.read_rows.forget(first_row + slot)
        injection = Injection(by, why, topic, tuple(digest(row[PROMPT]) for row in rows), len(pool), evicted)
        log.info("%s added %d prompts to %s: %s", by, len(rows), topic, why)
        self._unpublished.append(injection)
        self._publish()
        return injection

    def log_to(self, client: OvenClient) -> None:
        """Log injections with this client, including earlier ones that were not logged. `attach` calls this itself."""
        self._client = client
        self._publish()

    def take(self, count: int) -> list[Row]:
        """Return the next chunk of `count` prompts, for your own loop."""
        if count < 1:
            raise ConfigError(f"cannot take {count} prompts; give 1 or more")
        return [self.row(row) for row in self.draw(self.next_chunk, count)]

    def __iter__(self) -> Iterator[Row]:
        """Yield prompts endlessly."""
        while True:
            yield from self.take(1)

    def row(self, index: int) -> Row:
        """Return the prompt at a row of the dataset. Injected and then authored prompts follow the data's prompts."""
        data_rows = len(self._rows)
        if index < data_rows:
            return self._rows[index]
        authored_slot = index - data_rows - self._injected.slots
        row = self._injected.row(index - data_rows) if authored_slot < 0 else self.authored.pool.row(authored_slot)
        return row or self._rows[(index - data_rows) % data_rows]  # another sampler may draw an empty slot

    def pick(self, rng: random.Random, name: str, chunk: int) -> int:
        """Draw a row of a topic, from its authored, injected or data prompts."""
        share, slots = self.authored.drawable_slots(name, chunk)
        if slots and rng.random() < share:
            return len(self._rows) + self._injected.slots + rng.choice(slots)
        slots = self._injected.drawable_slots(name, chunk)
        if slots and rng.random() < self._share:
            return len(self._rows) + rng.choice(slots)
        return super().pick(rng, name, chunk)

    def check_loader(self, args: Any) -> None:
        """Raise ConfigError for a loader with worker processes, which would not receive injected prompts."""
        if args.dataloader_num_workers:
            raise ConfigError(
                f"dataloader_num_workers={args.dataloader_num_workers}, but worker processes would not receive "
                "injected prompts; set it to 0"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the mixture's state, and the injected and authored prompts with their text."""
        added_prompts = {"injected": self._injected.state(), "authored": self.authored.state()}
        return {**super().state_dict(), **added_prompts, "prompts": self.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, with its added prompts. Raises ConfigError if the topics differ or the cap is lower."""
        self._injected.load(state["injected"])
        self.authored.load(state["authored"])
        super().load_state_dict(state)
        self._unpublished.clear()
        if state["prompts"] != self.fingerprint:
            log.warning("the prompts differ from those of the saved state, so different prompts will be drawn")

    def _publish(self) -> None:
        client = self._client
        if client is not None:
            for injection in self._unpublished:
                client.publish_message(PromptsInjected, **asdict(injection), tick=client.tick, step=client.step)
            self._unpublished.clear()

    def _injected_row(self, prompt: Any, index: int) -> Row:
        location = f"injected prompt {index}"
        row = validate_row(prompt, location)
        if unknown := next((name for name in row if name not in self._columns), None):
            raise UnknownNameError("column of the prompts", unknown, self._columns)
        if is_text(row) != self._is_text:
            expected, actual = ("text", "messages") if self._is_text else ("messages", "text")
            raise ConfigError(f"{location} is {actual}, but the source's prompts are {expected}; give {expected}")
        return self._with_all_columns(row)

    def _with_all_columns(self, row: Row) -> Row:
        return {name: row.get(name) for name in self._columns}

    def _as_dataset(self) -> tuple[Any, Any]:
        """Return the dataset of all rows, and the dataset without slots, which the loader reads."""
        from datasets import Dataset

        data_rows = len(self._rows)
        slots = self._injected.slots + self.authored.pool.slots
        dataset = Dataset.from_dict({"row": range(data_rows + slots)}).with_transform(_Lookup(self))
        return dataset, dataset.select(range(data_rows))


class _Lookup:
    """Replaces row numbers with prompts when they are fetched."""

    def __init__(self, source: PromptSource) -> None:
        self._source = source

    def __call__(self, batch: Mapping[str, Sequence[int]]) -> dict[str, list[Any]]:
        rows = [self._source.row(int(row)) for row in batch["row"]]
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Pickle only the fingerprint, because the datasets library hashes the pickle. Unpickling raises an error."""
        return _fail_in_worker, (self._source.fingerprint,)


def _fail_in_worker(fingerprint: str) -> NoReturn:
    raise ConfigError(f"the prompts {fingerprint} cannot be used in a worker process; set dataloader_num_workers=0")


def _read_by_topic(prompts: Prompts | Mapping[str, Prompts]) -> dict[str, list[Row]]:
    """Return topic → rows, in the order in which the topics first appear."""
    rows: dict[str, list[Row]] = {}
    spellings: dict[str, str] = {}
    sources = prompts if isinstance(prompts, Mapping) else {"": prompts}
    for topic, source in sources.items():
        source_name = f"topic {topic!r}" if isinstance(prompts, Mapping) else "the source"
        if isinstance(prompts, Mapping) and (not isinstance(topic, str) or not topic.strip()):
            raise ConfigError(f"{topic!r} is not a valid topic; give a name")
        count = 0
        for location, row in read(source, source_name):
            count += 1
            row_topic = row.get(TOPIC)
            if row_topic is not None and (not isinstance(row_topic, str) or not row_topic.strip()):
                raise ConfigError(f"{location} has the topic {row_topic!r}; give a name, or omit it")
            if topic and row_topic is not None and row_topic != topic:
                raise ConfigError(
                    f"{location} has the topic {row_topic!r}, but is listed under {topic!r}; use only one"
                )
            name = topic or row_topic or DEFAULT_TOPIC
            spelling = spellings.setdefault(name.strip().casefold(), name)
            if spelling != name:
                raise ConfigError(
                    f"{location}: the topics {spelling!r} and {name!r} differ only in spelling; use one of them"
                )
            rows.setdefault(name, []).append({**row, TOPIC: name})
        if not count:
            raise ConfigError(f"{source_name} has no prompts; add at least one")
    if not rows:
        raise ConfigError("there are no prompts; give a list, a file, a folder, a function, or topics of these")
    return rows


def _are_text(rows: Sequence[Row]) -> bool:
    """Whether all prompts are text instead of messages. Raises ConfigError if they are mixed."""
    first_is_text = is_text(rows[0])
    if other_row := next((row for row in rows if is_text(row) != first_is_text), None):
        raise ConfigError(
            f"topic {rows[0][TOPIC]!r} has {'text' if first_is_text else 'messages'} and topic {other_row[TOPIC]!r} "
            f"has {'messages' if first_is_text else 'text'}; use the same form for all prompts"
        )
    return first_is_text
