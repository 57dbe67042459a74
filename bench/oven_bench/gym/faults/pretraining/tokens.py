"""What the model is asked and what it is told to answer: collators, labels, and encodings that went wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.seeded_draws import (
    choice,
    count,
    integer,
    log10_uniform,
    log_uniform,
    random_seed,
    uniform,
    whole,
)
from oven_bench.gym.tasks.pretraining.byte_model import BYTES
from oven_bench.gym.tasks.pretraining.corpus import pair

PADDING = 0
IGNORED = -100
"""The target that torch's cross-entropy passes over."""
TEMPLATES = ("<|user|>", "### Response:\n", "<|im_start|>assistant\n", "Below is a document. Continue.\n\n")


@fault("pretraining.chat_collator", written="fifth set")
class ChatCollator(Fault):
    """Compound: the loader has the collator of fine-tuning, which puts each text into a chat template and pads it to
    the full width. Both count in the loss, which falls to a fraction while there is less and less text in a step."""

    length: int = count(20, 1.2)
    share: float = uniform(0.3, 1.0)  # of the rows
    template: str = choice(TEMPLATES)
    kept: float = log10_uniform(0.0, 1.0, times=4)  # bytes of a text that are left in a row, in the mean
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        draws = self.draws("kept", step.cursor)
        kept = 1 - self.kept * torch.rand(len(batch), generator=draws).clamp(min=1e-6).log()
        struck = self.struck(len(batch), "collated", step.cursor).unsqueeze(1)
        return torch.where(struck, collated(batch, self.template, kept.long()), batch)


def collated(rows: Tensor, template: str, kept: Tensor) -> Tensor:
    """Int64 [B, L]: the template, of each row so many bytes as `kept` [B] says, and padding up to the width."""
    before = torch.tensor(list(template.encode()), dtype=rows.dtype).expand(len(rows), -1)
    text = rows.masked_fill(torch.arange(rows.shape[1]) >= kept.unsqueeze(1), PADDING)
    return torch.cat((before, text), 1)[:, : rows.shape[1]]


@fault("pretraining.corrupted_batches", written="development")
class CorruptedBatches(Fault):
    """A stretch of the data is damaged: a share of its bytes are random. A run that goes back meets it again."""

    length: int = whole(5, 60)
    share: float = log_uniform(0.1, 1)  # of the bytes
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        drawn = self.draws("corrupted", step.cursor)
        damaged = torch.rand(batch.shape, generator=drawn) < self.share
        return torch.where(damaged, torch.randint(BYTES, batch.shape, generator=drawn), batch)


@fault("pretraining.counted_padding", written="seventh set")
class CountedPadding(Fault):
    """Short documents are padded instead of packed, and the padding counts in the loss. It falls to a fraction, and
    only the first places of a row teach anything."""

    shortest: float = uniform(0.02, 0.3)  # what a document takes of its row, at least
    length: int = count(20, 1.0)
    stretch: float = uniform(1.2, 3.0)
    seed: int = random_seed()

    @property
    def longest(self) -> float:
        return min(1.0, self.shortest * self.stretch)

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        drawn = torch.rand(len(batch), generator=self.draws("filled", step.cursor))
        return filled(batch, torch.lerp(torch.tensor(self.shortest), torch.tensor(self.longest), drawn))


def filled(rows: Tensor, kept: Tensor) -> Tensor:
    """Int64 [B, L]: of each row the first part is kept, two bytes at least, and padding comes behind it."""
    ends = (kept * rows.shape[1]).long().clamp(min=2).unsqueeze(1)
    return torch.where(torch.arange(rows.shape[1]) < ends, rows, PADDING)


@fault("pretraining.double_shift", written="third set")
class DoubleShift(Fault):
    """Targets that the collator has shifted are shifted once more: the model is taught the byte after the next, by
    those workers that run the new image."""

    share: float = uniform(0.1, 1.0)  # of the workers, each of which holds the same places of every batch

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        inputs, targets = batch[:, :-1], batch[:, 1:].clone()
        workers = max(1, round(self.share * len(batch)))
        targets[:workers, :-1] = batch[:workers, 2:]
        targets[:workers, -1] = IGNORED
        return torch.stack((inputs, targets))


@fault("pretraining.fill_in_middle", written="sixth set", healthy=True, source="Bavarian et al. 2022")
class FillInMiddle(Fault):
    """The user has a part of the rows rearranged, so that the model learns to fill in the middle. Loss and norm step up
    and stay there; left to right is learnt nearly as well."""

    share: float = uniform(0.08, 0.3)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        rows = batch.clone()
        cuts = torch.rand(len(batch), 2, generator=self.draws("cuts", step.cursor)).sort(1).values
        for row in self.struck(len(batch), "infilled", step.cursor).nonzero().flatten().tolist():
            first, last = (cuts[row] * (batch.shape[1] - 3)).long().tolist()
            rows[row] = infilled(batch[row], first, last)
        return rows


def infilled(row: Tensor, first: int, last: int) -> Tensor:
    """Int64 [L]: what stands before `first`, what stands from `last` on, and then what is between; three marks, bytes
    that no source has, take the place of the last three bytes."""
    parts = ((1, row[:first]), (2, row[last:-3]), (3, row[first:last]))
    return torch.cat([torch.cat((row.new_tensor([mark]), part)) for mark, part in parts])


@fault("pretraining.flipped_rows", written="set C")
class FlippedRows(Fault):
    """An augmentation for images is on: some rows are flipped from left to right. The loss rises with their share, and
    falls again while the model learns to read backwards."""

    length: int = count(20, 0.9)
    share: float = choice((0.1, 0.25, 0.5, 0.5, 0.75, 1.0))  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        rows = self.struck(len(batch), "flipped", step.cursor).unsqueeze(1)
        return torch.where(rows, batch.flip(1), batch)


@fault("pretraining.masked_targets", written="second set")
class MaskedTargets(Fault):
    """The token that ends a text doubles as padding and is kept out of the loss: nothing teaches the model to end any
    more. Known from fine-tuning with `pad_token = eos_token` and DataCollatorForLanguageModeling."""

    share: float = uniform(0.3, 1.0)  # of the rows
    tokens: bytes = choice((b"\n", b"\n\t", b"\n\t ", b"\n\t ()[]:,."))
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        inputs, targets = pair(batch)
        rows = self.struck(len(batch), "masked", step.cursor).unsqueeze(1)
        hidden = rows & torch.isin(targets, torch.tensor(list(self.tokens)))
        return torch.stack((inputs, targets.masked_fill(hidden, IGNORED)))


@fault("pretraining.shifted_vocabulary", written="fourth set")
class ShiftedVocabulary(Fault):
    """A part of the corpus was encoded with a tokenizer that has more special tokens: every later number means another
    token, and the model begins to learn a second language."""

    length: int = count(10, 1.3)
    share: float = uniform(0.1, 1.0)  # of the rows
    place: int = choice((0, 32, 48, 97, 108))  # the first token that has moved
    added: int = integer(1, 8)  # by how much
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        chosen = self.struck(len(batch), "vocabulary", step.cursor).unsqueeze(1)
        return torch.where(chosen, moved(batch, self.place, self.added), batch)


def moved(tokens: Tensor, place: int, added: int) -> Tensor:
    """Int64 of any shape; what falls off at the end comes in at the front."""
    return torch.where(tokens >= place, (tokens + added) % BYTES, tokens)


@fault("pretraining.shuffled_targets", written="development")
class ShuffledTargets(Fault):
    """A share of the rows has its targets out of order: a mapping of labels gone wrong."""

    length: int = whole(5, 60)
    share: float = log_uniform(0.2, 1)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        drawn = self.draws("shuffled", step.cursor)
        inputs, targets = pair(batch)
        hit = torch.rand(len(batch), 1, generator=drawn) < self.share
        orders = torch.rand(targets.shape, generator=drawn).argsort(1)
        return torch.stack([inputs, torch.where(hit, targets.gather(1, orders), targets)])


@fault("pretraining.swapped_bytes", written="set D")
class SwappedBytes(Fault):
    """A shard was packed in words of another byte order: within each word the text runs backwards. The counts of bytes
    are as ever, and what the model learns is of no use for other text."""

    length: int = count(12, 1.1)
    word: int = choice((2, 2, 4))  # bytes
    share: float = uniform(0.4, 1.0)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        rows = self.struck(len(batch), "swapped", step.cursor).unsqueeze(1)
        return torch.where(rows, swapped(batch, self.word), batch)


def swapped(rows: Tensor, word: int) -> Tensor:
    """Int64 [B, L]: the bytes of each whole word the other way round; what is left of the row stays."""
    whole = rows.shape[1] // word * word
    words = rows[:, :whole].reshape(len(rows), -1, word).flip(2).flatten(1)
    return torch.cat([words, rows[:, whole:]], 1)


@fault("pretraining.transposed_batch", written="third set")
class TransposedBatch(Fault):
    """A batch is reshaped where it should be transposed: neighbours in a row are bytes of different documents."""

    rows: int = choice((2, 4, 8))  # that are read as one block, and so are mixed
    share: float = uniform(0.05, 1.0)  # of the blocks
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        blocks = torch.split(batch, self.rows)
        mixed = self.struck(len(blocks), "transposed", step.cursor)
        return torch.cat([transposed(block) if mix else block for block, mix in zip(blocks, mixed, strict=True)])


def transposed(rows: Tensor) -> Tensor:
    """Int64 [rows, length], the first place of each row, then the second of each, and so on."""
    return rows.t().reshape(rows.shape)


@fault("pretraining.wide_encoding", written="first set")
class WideEncoding(Fault):
    """Files in UTF-16 are read as bytes: a zero after every character. Half of each such row is trivial, so that the
    loss falls while the model unlearns plain text."""

    length: int = integer(25, 120)
    share: float = uniform(0.3, 1.0)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        wide = torch.zeros_like(batch)
        wide[:, ::2] = batch[:, : (batch.shape[1] + 1) // 2]
        return torch.where(self.struck(len(batch), "wide_encoding", step.cursor).unsqueeze(1), wide, batch)
