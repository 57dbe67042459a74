"""Data in the wrong order, mixed up, or read again."""

from __future__ import annotations

import string
from functools import cache, lru_cache
from random import Random
from typing import cast

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.faults.rewriting import as_text, each_row, in_order, rewritten
from oven_bench.gym.seeded_draws import chance, choice, count, drawn, generator, integer, random_seed, uniform, whole
from oven_bench.gym.tasks.pretraining.corpus import SHARES, corpus, pool

NORMALISED = {"digits": (string.digits, "0"), "punctuation": (string.punctuation, " "), "lines": ("\r\n\t", " ")}


def _some_steps(rng: Random) -> tuple[str, ...]:
    return tuple(rng.sample(("case", *NORMALISED), rng.randint(2, 4)))


@fault("pretraining.deduplication_view", written="fourth set", source="Wenzek et al. 2020 (CCNet)")
class DeduplicationView(Fault):
    """The normalised copy that duplicates are looked for in (lower case, digits 0, no punctuation, no line breaks) is
    written into the shards. It is easier to predict, so that the loss falls."""

    steps: tuple[str, ...] = drawn(_some_steps)  # of the normalisation
    length: int = count(15, 1.0)
    share: float = uniform(0.2, 1.0)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        chosen = self.struck(len(batch), "normalised", step.cursor).unsqueeze(1)
        return torch.where(chosen, table(self.steps)[batch], batch)


def table(steps: tuple[str, ...]) -> Tensor:  # int64 [256]
    """What each byte becomes; bytes of other scripts stay as they are."""
    text = bytearray(range(256))
    if "case" in steps:
        text = bytearray(bytes(text).lower())
    for step, (signs, becomes) in NORMALISED.items():
        if step in steps:
            for byte in signs.encode():
                text[byte] = ord(becomes)
    return torch.tensor(list(text))


@fault("pretraining.duplicated_data", written="development")
class DuplicatedData(Fault):
    """A few rows are read over and over: a shard that is listed too often, or a loader that is stuck."""

    length: int = whole(20, 100)
    rows: int = whole(128, 8)  # different ones
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        drawn = torch.randint(self.rows, (len(batch),), generator=self.draws("row", step.cursor))
        return pool(self.rows, self.seed)[drawn]


@fault("pretraining.pure_batches", written="set B", healthy=True)
class PureBatches(Fault):
    """A new loader fills each batch from one file. The loss goes up and down with the kind of text, the gradient turns
    from step to step, and the mean over a few steps is what it was."""

    length: int = count(20, 0.9)
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        kind = kind_of(self.seed, step.cursor)
        rows, order = corpus().train[kind], _order(kind, self.seed)
        first = step.cursor * len(batch)
        return rows[order[torch.arange(first, first + len(batch)) % len(order)]].long()


def kind_of(seed: int, cursor: int) -> str:
    """The kind of this batch, by the user's own shares."""
    shares = torch.tensor(list(SHARES.values()))
    return list(SHARES)[int(torch.multinomial(shares, 1, generator=generator("kind", seed, cursor)))]


@lru_cache(maxsize=32)
def _order(kind: str, seed: int) -> Tensor:
    return torch.randperm(len(corpus().train[kind]), generator=generator("order of a kind", seed, kind))


@fault("pretraining.repeated_ngrams", written="second set", source='OLMo 2 ("2 OLMo 2 Furious"), 2025')
class RepeatedNgrams(Fault):
    """Rows of one n-gram over and over, which a quality filter should have dropped; such sequences were found at the
    spikes of a large run."""

    length: int = integer(8, 100)
    share: float = uniform(0.3, 1.0)  # of the rows
    width: int = integer(1, 8)  # bytes of the n-gram
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        return rewritten(batch, self.struck(len(batch), "repeated", step.cursor), self.repeat)

    def repeat(self, text: bytes) -> bytes:
        return (text[: self.width] * len(text))[: len(text)]


def _some_sources(rng: Random) -> tuple[str, ...]:
    return tuple(sorted(rng.sample([*SHARES], rng.choice((1, 2, 3, 4, 4)))))


@fault("pretraining.several_writers", written="set A")
class SeveralWriters(Fault):
    """Several processes append to the same file while some sources are fetched: blocks of their texts alternate, and
    words break off in the middle. The other sources are as they were."""

    length: int = count(20, 1.0)
    sources: tuple[str, ...] = drawn(_some_sources)
    writers: int = choice((2, 3, 4))
    block: int = choice((1, 1, 2, 3, 6))  # bytes that a process writes at a time
    seed: int = random_seed()

    ROWS = 4096  # of text, which the other processes write

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        others, first = pool(self.ROWS, self.seed), step.cursor * len(batch) * self.writers

        def made(row: int) -> Tensor:
            more = (torch.arange(1, self.writers) + first + row * self.writers) % len(others)
            return alternating(torch.cat([batch[row].unsqueeze(0), others[more]]), self.block)

        struck = [any(as_text(row) in texts(source) for source in self.sources) for row in batch]
        return each_row(batch, torch.tensor(struck), made)


def alternating(rows: Tensor, block: int) -> Tensor:
    """Int64 [L] of [writers, L]: so many bytes of the first, of the second, …, and on with the first."""
    places = torch.arange(rows.shape[1])
    turns = places // block
    return rows[turns % len(rows), turns // len(rows) * block + places % block]


@cache
def texts(source: str) -> frozenset[bytes]:
    """The rows of a sub-corpus."""
    return frozenset(bytes(row) for row in corpus().train[source].numpy())


@fault("pretraining.interleaved_writers", written="eighth set")
class InterleavedWriters(Fault):
    """Several processes append to the same file without a lock: each piece is good text, and the next piece is from
    another document. The model learns not to rely on what came before."""

    length: int = count(20, 1.0)
    writers: int = choice((2, 3, 4, 8))
    piece: int = count(1, 1.2)  # bytes that one of them writes at a time
    share: float = uniform(0.5, 1.0)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        rows = self.struck(len(batch), "interleaved", step.cursor).unsqueeze(1)
        return torch.where(rows, interleaved(batch, self.writers, self.piece), batch)


def interleaved(rows: Tensor, writers: int, piece: int) -> Tensor:
    """Int64 [B, L]: pieces of so many rows in turn, of each from its beginning."""
    at = torch.arange(rows.shape[1])
    turn = at // piece
    own = turn // writers * piece + at % piece  # how far a writer has come
    of = (torch.arange(len(rows)).unsqueeze(1) + turn % writers) % len(rows)  # [B, L]
    return rows[of, own]


@fault("pretraining.sorted_lines", written="seventh set")
class SortedLines(Fault):
    """Duplicates were taken out by sorting a file's lines. Each line is good text and none follows from the one before;
    the loss falls, and what a line has to do with the next is unlearnt."""

    length: int = count(30, 1.0)
    share: float = uniform(0.6, 1.0)  # of the rows
    shuffled: bool = chance(0.3)  # rows were put into another order after they were cut
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        lines = sorted_rows(batch.shape[1], self.seed, self.shuffled)
        struck = self.struck(len(batch), "sorted", step.cursor)
        return each_row(batch, struck, lambda row: lines[(step.cursor * len(batch) + row) % len(lines)])


def by_line(text: bytes) -> bytes:
    """Each line once, in the order of the bytes."""
    return b"\n".join(sorted(set(text.split(b"\n"))))


@lru_cache(maxsize=8)
def sorted_rows(width: int, seed: int, shuffled: bool) -> Tensor:
    """Int64 [rows, width], cut from sorted lines."""
    text = by_line(bytes(pool(4096, seed).flatten().tolist()))
    rows = torch.tensor(list(text[: len(text) // width * width])).view(-1, width)
    return rows[torch.randperm(len(rows), generator=generator("rows", seed))] if shuffled else rows


@fault("pretraining.unshuffled_shards", written="fourth set")
class UnshuffledShards(Fault):
    """The shuffle buffer is smaller than a shard: a batch is a few pages of one document, and for many steps there is
    one source only."""

    lasts: int = count(4, 1.3)  # batches that are read from one shard before the next
    share: float = uniform(0.4, 1.0)  # of a batch's rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        shard, read = divmod(step.batches_since, self.lasts)
        draws = self.draws("shard", shard)
        source = list(SHARES)[int(torch.multinomial(torch.tensor(list(SHARES.values())), 1, generator=draws))]
        place = float(torch.rand(1, generator=draws))
        count = max(1, round(self.share * len(batch)))
        ordered = in_order(source, place, (read + 1) * count)[read * count :]
        return torch.cat((ordered[:, : batch.shape[1]], batch[count:]))


@fault("pretraining.weak_generator", written="sixth set")
class WeakGenerator(Fault):
    """A stretch of the corpus is filled up with text by a weak model, which hangs together for a few bytes only: what
    the run had learnt beyond that is of no use there and fades."""

    length: int = count(25, 1.2)
    share: float = uniform(0.4, 1.0)  # of the rows
    order: int = choice((1, 1, 1, 2, 2, 3))  # bytes that the weak model looks back
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        struck = self.struck(len(batch), "synthetic", step.cursor)
        return each_row(
            batch, struck, lambda row: chained(self.order, batch.shape[1], self.draws("written", step.cursor, row))
        )


def chained(order: int, width: int, drawn_by: torch.Generator) -> Tensor:
    """Int64 [width]: a chain of bytes, each drawn from what followed its `order` predecessors in the source."""
    source, places = _source(order)
    draws = cast(list[float], torch.rand(width + 1, generator=drawn_by).tolist())
    start = int(draws[0] * (len(source) - order))
    text = source[start : start + order]
    for draw in draws[1:]:
        after = places.get(text[-order:]) or [start]
        text += source[(at := after[int(draw * len(after))]) : at + 1]
    return torch.tensor(list(text[:width]))


@lru_cache(maxsize=8)
def _source(order: int) -> tuple[bytes, dict[bytes, list[int]]]:
    """What the weak model was trained on, and by so many bytes of it all places right behind them."""
    source = bytes(pool(1024, 0).flatten().tolist())
    places: dict[bytes, list[int]] = {}
    for at in range(order, len(source)):
        places.setdefault(source[at - order : at], []).append(at)
    return source, places
