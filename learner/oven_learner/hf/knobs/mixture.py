"""The knob `data.mixture`, which sets each dataset's share of the training data, and the action `data.skip`.

    mixture = oven.Mixture({"easy": easy_rows, "hard": hard_rows}, seed=0)
    trainer = SFTTrainer(train_dataset=mixture.dataset, ...)
    oven.attach(trainer, mixture=mixture)

A skip combined with a rollback avoids a bad stretch of data (PaLM; Chowdhery et al. 2022, arXiv 2204.02311,
section 5.1: 200 to 500 batches). A batch of a `Mixture` depends only on its position. Therefore a checkpoint only needs
the number of skipped batches, and a resumed run draws the same rows. A rollback in place affects neither the position
in the data nor the skips. A rollback by restart restores both from the checkpoint.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Sampler

from oven_core.errors import ConfigError
from oven_learner import trainer_internals
from oven_learner.actuators import Actuators

MIXTURE = "data.mixture"
LAG_CHUNKS = 2
"""Number of chunks that have already been drawn when a change is made. HF Trainer's loader prefetches one batch, and
accelerate prefetches another. So a change in step k first affects the data of step k + 2 (with one batch per chunk)."""
SKIP = "data.skip"
MAX_SKIPPED = 10_000
"""Maximum number of batches in one skip. A larger number is probably a mistake."""
ENDLESS_EPOCH_CHUNKS = 100_000
"""Number of chunks in an epoch if the run's steps are limited. No run has that many, so the epoch never ends."""


class ReadRows:
    """The set of rows that have been read, with one bit per row: 12.5 MB for a hundred million rows."""

    def __init__(self, row_count: int) -> None:
        self._bits = bytearray((row_count + 7) // 8)

    def mark(self, rows: Iterable[int]) -> float:
        """Mark one or more rows as read. Return the share of them that were read before."""
        bits, count, repeated_count = self._bits, 0, 0
        for row in rows:
            byte, bit = row >> 3, 1 << (row & 7)
            count += 1
            if bits[byte] & bit:
                repeated_count += 1
            bits[byte] |= bit
        return repeated_count / count

    def grow(self, row_count: int) -> None:
        """Append space for this number of unread rows."""
        self._bits += bytes((row_count + 7) // 8)

    def forget(self, row: int) -> None:
        """Mark a row as unread, because another row replaces it."""
        self._bits[row >> 3] &= ~(1 << (row & 7)) & 0xFF

    def bits(self) -> torch.Tensor:
        """Return a copy of the bits, uint8 [rows / 8]. Row r is bit r mod 8 of byte r div 8."""
        return torch.frombuffer(bytearray(self._bits), dtype=torch.uint8)

    def restore(self, bits: torch.Tensor) -> None:
        """Restore the result of `bits`. If the number of rows has changed, mark all rows as unread."""
        has_same_size = len(bits) == len(self._bits)
        self._bits = bytearray(bits.cpu().numpy().tobytes()) if has_same_size else bytearray(len(self._bits))


class Mixture:
    """The weights of named datasets, and the timeline of their changes. Rows are drawn in chunks: one per step, or one
    per generation if a step trains on sampled answers. Chunk k depends only on the seed, its position in the data (k
    plus skipped chunks) and the weights at that time. So a run that restores `timeline` and `skips` from a checkpoint
    draws the same rows again. Rows are drawn with replacement."""

    def __init__(
        self, datasets: Mapping[str, Sequence[Any] | Any], weights: Mapping[str, float] | None = None, *, seed: int = 0
    ) -> None:
        """`weights` default to the sizes of the datasets, as if they were shuffled together. Raises ConfigError for
        invalid weights, if there are no datasets, and for an empty dataset."""
        if not datasets or not all(len(rows) for rows in datasets.values()):
            lengths = {name: len(rows) for name, rows in datasets.items()}
            raise ConfigError(
                f"the mixture has no datasets, or one is empty (rows: {lengths}); pass at least one non-empty dataset"
            )
        self.names = tuple(datasets)
        self.seed = seed
        self.dataset = _concatenate(list(datasets.values()))
        """All datasets concatenated: the trainer's `train_dataset`."""
        self.epoch_dataset = self.dataset
        """The dataset that the loader reads."""
        self.pools: dict[str, range] = {}
        """Dataset → its rows in `dataset`."""
        row_count = 0
        for name, rows in datasets.items():
            self.pools[name] = range(row_count, row_count + len(rows))
            row_count += len(rows)
        sizes = {name: float(len(pool)) for name, pool in self.pools.items()}
        self.timeline = [(0, self._normalise(weights or sizes))]
        """List of (first chunk, weights from that chunk on), oldest first."""
        self.skips = [(0, 0)]
        """List of (first chunk, number of chunks skipped before it), oldest first."""
        self.next_chunk = 0
        """The next chunk to draw."""
        self.read_rows = ReadRows(row_count)
        """Rows already used for training, without rows that were only drawn ahead."""
        self.sampler: MixtureSampler | None = None
        """The trainer's sampler, or None before the trainer has created its loader."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"timeline": self.timeline, "skips": self.skips, "next": self.next_chunk, "read": self.read_rows.bits()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, including which rows were read. Raises ConfigError if the datasets differ."""
        self.timeline = [(int(chunk), self._normalise(weights)) for chunk, weights in state["timeline"]]
        self.skips = [(int(chunk), int(skipped)) for chunk, skipped in state["skips"]]
        self.next_chunk = int(state["next"])
        self.read_rows.restore(state["read"])

    def get(self) -> dict[str, float]:
        """Return the newest weights, which sum to 1."""
        return dict(self.timeline[-1][1])

    def set(self, weights: Mapping[str, float]) -> None:
        """Use these weights from the next chunk that has not been drawn yet (`LAG_CHUNKS` from now). Raises ConfigError
        unless the weights name exactly the datasets, are finite and >= 0, and have a positive sum."""
        new_entry = (self.next_chunk, self._normalise(weights))
        self.timeline = [entry for entry in self.timeline if entry[0] < self.next_chunk] + [new_entry]

    def skip(self, count: int, chunk: int) -> None:
        """Skip `count` chunks of data from `chunk` on. That chunk is drawn next, even if it was drawn before."""
        skipped_chunks = self.skips[-1][1] + count
        self.skips = [entry for entry in self.skips if entry[0] < chunk] + [(chunk, skipped_chunks)]
        self.next_chunk = chunk

    def position(self, chunk: int) -> int:
        """Return the position of a chunk in the data, which includes skipped chunks."""
        return chunk + self.skips[bisect_right([start for start, _ in self.skips], chunk) - 1][1]

    def draw(self, chunk: int, count: int) -> list[int]:
        """Return the rows of a chunk, and advance to the next."""
        self.next_chunk = chunk + 1  # may decrease, because a resumed run draws from chunk 0 again
        return self.rows(chunk, count)

    def rows(self, chunk: int, count: int) -> list[int]:
        """Return the rows of a chunk. The number of rows per dataset differs by less than one from its exact share.
        Datasets are selected by systematic sampling (one random offset, equal strides). It is unbiased, and metrics per
        dataset are much less noisy than with independent draws."""
        weights = self.timeline[bisect_right([start for start, _ in self.timeline], chunk) - 1][1]
        rng = random.Random(f"mixture {self.seed} {self.position(chunk)}")
        edges = list(accumulate(weights[name] for name in self.names))
        offset = rng.random()
        rows = []
        for i in range(count):
            point = (i + offset) / count * edges[-1]
            rows.append(self.pick(rng, self.names[bisect_right(edges, point)], chunk))
        rng.shuffle(rows)
        return rows

    def pick(self, rng: random.Random, name: str, chunk: int) -> int:
        """Draw a row of the dataset with this name."""
        return rng.choice(self.pools[name])

    def check_loader(self, args: Any) -> None:
        """Raise ConfigError if a loader with these arguments cannot follow the mixture."""

    def _normalise(self, weights: Mapping[str, float]) -> dict[str, float]:
        if set(weights) != set(self.names):
            raise ConfigError(f"the mixture got weights for {sorted(weights)}, expected exactly {sorted(self.names)}")
        total = math.fsum(weights.values())
        if not (math.isfinite(total) and total > 0 and min(weights.values()) >= 0):
            raise ConfigError(f"mixture {dict(weights)}: the weights must be finite and >= 0, with a positive sum")
        return {name: weights[name] / total for name in self.names}


class MixtureSampler(Sampler[int]):
    """Yields rows in the layout of the trainer's own sampler. A chunk has `chunk_rows` rows, each repeated `group_size`
    times. The whole chunk is repeated `repeats` times."""

    trains_on_answers = False
    """Whether the model trains on sampled answers to the rows, instead of the rows themselves."""

    def __init__(self, mixture: Mixture, *, chunk_rows: int, group_size: int, repeats: int, chunks: int) -> None:
        """`chunks` is the number of chunks in an epoch."""
        self.mixture, self.chunks = mixture, chunks
        self.chunk_rows, self.group_size, self.repeats = chunk_rows, group_size, repeats
        self.end_chunk = chunks
        """The first chunk after the current epoch."""
        self._epoch = 0
        mixture.sampler = self

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        chunk, self.end_chunk = self._epoch * self.chunks, (self._epoch + 1) * self.chunks
        while chunk < self.end_chunk:
            rows = self.mixture.draw(chunk, self.chunk_rows)
            for _ in range(self.repeats):
                for row in rows:
                    yield from [row] * self.group_size
            chunk = self.mixture.next_chunk  # the following chunk, unless a skip has discarded chunks drawn ahead

    def __len__(self) -> int:
        return self.chunks * self.repeats * self.chunk_rows * self.group_size


def install_sampler(trainer: Any, mixture: Mixture) -> None:
    """Replace the trainer's own sampler with the mixture. Call it before `train()`, which creates the loader. Raises
    ConfigError unless the trainer's rows are exactly those of the mixture, without packing or filtering."""
    trainer_internals.MIXTURE.require(trainer)
    if getattr(getattr(trainer, trainer_internals.GET_SAMPLER), "oven_mixture", None) is mixture:
        return
    mixture.check_loader(trainer.args)
    rows = trainer.train_dataset
    if not hasattr(rows, "__len__") or len(rows) != len(mixture.dataset):
        count = f"{len(rows):,} rows" if hasattr(rows, "__len__") else "rows that cannot be counted"
        raise ConfigError(
            f"the trainer has {count}, but the mixture has {len(mixture.dataset):,}; use train_dataset=mixture.dataset "
            "without packing, and remove rows that are too long beforehand"
        )

    def sample_from_mixture(get_own_sampler: Callable[..., Any]) -> Callable[..., Any]:
        def get_sampler(dataset: Any = None) -> MixtureSampler:
            if mixture.epoch_dataset is not mixture.dataset:
                dataset = mixture.epoch_dataset
            own_sampler = get_own_sampler() if dataset is None else get_own_sampler(dataset)
            return _create_sampler_like(own_sampler, trainer, mixture)

        get_sampler.oven_mixture = mixture  # type: ignore[attr-defined]
        return get_sampler

    trainer_internals.wrap(trainer, trainer_internals.GET_SAMPLER, sample_from_mixture)


def _create_sampler_like(own_sampler: Any, trainer: Any, mixture: Mixture) -> MixtureSampler:
    """Return a sampler with the layout of the trainer's own. TRL's RepeatSampler (GRPO, RLOO, distillation) has its
    layout in its attributes. Any other sampler yields a step's rows one by one."""
    args = trainer.args
    rows_per_step = args.train_batch_size * args.world_size * args.gradient_accumulation_steps
    chunk_rows, group_size, repeats = rows_per_step, 1, 1
    trains_on_answers = type(own_sampler).__name__ == "RepeatSampler"
    if trains_on_answers:
        chunk_rows, group_size = own_sampler.batch_size, own_sampler.mini_repeat_count
        repeats = own_sampler.repeat_count
    chunk_samples = chunk_rows * group_size * repeats
    chunks = ENDLESS_EPOCH_CHUNKS if args.max_steps > 0 else max(1, len(own_sampler) // chunk_samples)
    sampler = MixtureSampler(mixture, chunk_rows=chunk_rows, group_size=group_size, repeats=repeats, chunks=chunks)
    sampler.trains_on_answers = trains_on_answers
    return sampler


def _concatenate(datasets: list[Any]) -> Any:
    if hasattr(datasets[0], "column_names"):  # a dataset of the datasets library
        from datasets import concatenate_datasets

        return concatenate_datasets(datasets)
    if all(isinstance(rows, list) for rows in datasets):
        return [row for rows in datasets for row in rows]
    return ConcatDataset(datasets)


class Skip:
    """The action `data.skip` of one trainer. It also discards the chunks that the loader prefetched before the skip."""

    def __init__(self, trainer: Any, mixture: Mixture) -> None:
        self._mixture = mixture
        self._fetched_chunks = 0  # chunks that training has fetched from the loader, if each step fetches one
        self._chunks_to_discard = 0
        fetch = trainer.get_batch_samples

        def fetch_after_skip(iterator: Any, batches: int, *rest: Any) -> Any:
            while self._chunks_to_discard:
                self._chunks_to_discard -= 1
                fetch(iterator, batches, *rest)
            self._fetched_chunks += 1
            return fetch(iterator, batches, *rest)

        fetch_after_skip.oven_skip = self  # type: ignore[attr-defined]
        trainer.get_batch_samples = fetch_after_skip

    def begin(self, step: int) -> None:
        self._fetched_chunks, self._chunks_to_discard = step, 0

    def __call__(self, count: float | None) -> tuple[float, float]:
        """Skip `count` batches. Return the positions of the next batch without and with the skip. Normally the skip
        also discards prefetched chunks. If several steps share a chunk (completions are reused), or at the last step of
        an epoch, the skip starts after the prefetched chunks. Raises ValueError for an invalid count."""
        if count is None or not 1 <= count <= MAX_SKIPPED or count != int(count):
            raise ValueError(f"cannot skip {count!r} batches; pass a whole number from 1 to {MAX_SKIPPED:,}")
        mixture, sampler = self._mixture, self._mixture.sampler
        prefetched_chunks = 0
        if sampler is not None and sampler.repeats == 1 and mixture.next_chunk < sampler.end_chunk:
            prefetched_chunks = max(0, mixture.next_chunk - self._fetched_chunks)
        self._chunks_to_discard += prefetched_chunks
        chunk = mixture.next_chunk - prefetched_chunks  # the sampler draws the prefetched chunks again, after the skip
        before = mixture.position(chunk)
        mixture.skip(int(count), chunk)
        return float(before), float(mixture.position(chunk))


def register_knobs(trainer: Any, actuators: Actuators, mixture: Mixture) -> None:
    """Register `data.mixture` if there are several datasets, and `data.skip` unless the user has registered it."""
    if len(mixture.names) > 1:
        actuators.simplex(MIXTURE, mixture.get, mixture.set, moves_own_metric=True)
    if SKIP not in actuators:
        skip = getattr(trainer.get_batch_samples, "oven_skip", None) or Skip(trainer, mixture)
        skip.begin(0 if trainer.args.ignore_data_skip else trainer.state.global_step)
        actuators.action(SKIP, skip, unit="batches")
