"""`data.mixture`: how much of each dataset training draws, changed while it continues.

mixture = oven.Mixture({"easy": one, "hard": other}, seed=0)
trainer = SFTTrainer(train_dataset=mixture.dataset, ...)
oven.attach(trainer, mixture=mixture)
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Sampler

from oven_core.errors import ConfigError
from oven_learner.actuators import Actuators

SKIP = "data.skip"
MOST_SKIPPED = 10_000
"""Batches in one skip: more is a mistake."""


class Skip:
    """One trainer's. What the loader has drawn ahead of training is thrown away when it is passed over."""

    def __init__(self, trainer: Any, mixture: Mixture) -> None:
        self._mixture = mixture
        self._trained_on = 0
        self._to_drop = 0
        fetch = trainer.get_batch_samples

        def fetched(iterator: Any, batches: int, *rest: Any) -> Any:
            """The batches of one optimizer step."""
            while self._to_drop:
                self._to_drop -= 1
                fetch(iterator, batches, *rest)
            self._trained_on += 1
            return fetch(iterator, batches, *rest)

        fetched.oven_skip = self  # type: ignore[attr-defined]
        trainer.get_batch_samples = fetched

    def begin(self, step: int) -> None:
        """Training begins with this chunk."""
        self._trained_on, self._to_drop = step, 0

    def __call__(self, count: float | None) -> tuple[float, float]:
        """(position of the batch that would have come next, and of the one that does). Raises ValueError for what is
        not a number of batches.

        Where a chunk serves several steps (completions that are reused), and at an epoch's last step, the skip begins
        with the chunk after the one that is drawn.
        """
        if count is None or not 1 <= count <= MOST_SKIPPED or count != int(count):
            raise ValueError(
                f"{count!r} is not a number of batches to pass over; give a whole one from 1 to {MOST_SKIPPED:,}"
            )
        mixture, sampler = self._mixture, self._mixture.sampler
        chunk = drawn = mixture.next_chunk
        if sampler is not None and sampler.repeats == 1 and drawn < sampler.ends:
            chunk = min(drawn, self._trained_on)
        before = mixture.position(chunk)
        mixture.skip(int(count), chunk)
        self._to_drop += drawn - chunk
        return float(before), float(mixture.position(chunk))


def announce_skip(trainer: Any, actuators: Actuators, mixture: Mixture) -> None:
    if SKIP in actuators:
        return
    skip = getattr(trainer.get_batch_samples, "oven_skip", None) or Skip(trainer, mixture)
    skip.begin(0 if trainer.args.ignore_data_skip else trainer.state.global_step)
    actuators.action(SKIP, skip, unit="batches")


class RowsRead:
    """Takes 12.5 MB for a hundred million rows, in memory and in a checkpoint."""

    def __init__(self, rows: int) -> None:
        self._bits = bytearray((rows + 7) // 8)

    def repeated(self, rows: Iterable[int]) -> float:
        """The share of these rows, one at least, that were read before, here too; from now on all were."""
        bits, count, again = self._bits, 0, 0
        for row in rows:
            place, bit = row >> 3, 1 << (row & 7)
            count += 1
            again += bool(bits[place] & bit)
            bits[place] |= bit
        return again / count

    def grow(self, rows: int) -> None:
        """By so many rows at the end, none of them read."""
        self._bits += bytes((rows + 7) // 8)

    def forget(self, row: int) -> None:
        """Another row lies in this one's place."""
        self._bits[row >> 3] &= ~(1 << (row & 7)) & 0xFF

    def bits(self) -> torch.Tensor:
        """A copy, uint8 [rows / 8]: row r is bit r mod 8 of byte r div 8."""
        return torch.frombuffer(bytearray(self._bits), dtype=torch.uint8)

    def put_back(self, bits: torch.Tensor) -> None:
        """What `bits` returned. With another number of rows a row has another place: none of them was read."""
        same = len(bits) == len(self._bits)
        self._bits = bytearray(bits.cpu().numpy().tobytes()) if same else bytearray(len(self._bits))


MIXTURE = "data.mixture"
LAG_CHUNKS = 2
"""How many chunks are already drawn when a change is made: the loader of HF Trainer prefetches one batch and accelerate
looks one further ahead. A change made in step k is first seen in the data of step k + 2 (with one batch a chunk)."""
ENDLESS = 100_000
"""Chunks in an epoch of a run that counts steps: more than any has, so that an epoch never ends."""


class Mixture:
    """Weights over named datasets, with the timeline of their changes.

    Chunk k is a function of the seed, its position in the data (k, and what was passed over) and the weights then in
    force: a run that restores `timeline` and `skips`, as resuming from a checkpoint does, draws the same rows again.
    Rows are drawn with replacement.
    """

    def __init__(
        self, datasets: Mapping[str, Sequence[Any] | Any], weights: Mapping[str, float] | None = None, *, seed: int = 0
    ) -> None:
        """`weights` default to the datasets' sizes, as if they were shuffled together. Raises ConfigError for no
        dataset, an empty one, and weights that are none."""
        if not datasets or not all(len(rows) for rows in datasets.values()):
            lengths = {name: len(rows) for name, rows in datasets.items()}
            raise ConfigError(f"a mixture of {lengths or 'nothing'}: give it named datasets, each with rows")
        self.names = tuple(datasets)
        self.seed = seed
        self.dataset = _joined(list(datasets.values()))
        """All of them, one after another: the trainer's `train_dataset`."""
        self.epoch = self.dataset
        """What an epoch goes over."""
        ends = list(accumulate(len(rows) for rows in datasets.values()))
        self.pools = dict(zip(self.names, map(range, [0, *ends], ends), strict=False))
        sizes = {name: float(len(pool)) for name, pool in self.pools.items()}
        self.timeline = [(0, self._normalised(weights or sizes))]
        """(first chunk, weights from it on), oldest first."""
        self.skips = [(0, 0)]
        """(first chunk, how much of the data was passed over before it), oldest first."""
        self.next_chunk = 0
        """What is drawn next."""
        self.read = RowsRead(ends[-1])
        """The rows that training has taken, whatever was drawn ahead of it."""
        self.sampler: MixtureSampler | None = None
        """The one that a trainer draws by, once it has made its loader."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep: without the timeline a resumed run would draw its past otherwise."""
        return {"timeline": self.timeline, "skips": self.skips, "next": self.next_chunk, "read": self.read.bits()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A change from now on begins at the chunk that came next when the state was taken; what was read later counts
        as unread. Raises ConfigError where the datasets are others."""
        self.timeline = [(int(chunk), self._normalised(weights)) for chunk, weights in state["timeline"]]
        self.skips = [(int(chunk), int(passed)) for chunk, passed in state["skips"]]
        self.next_chunk = int(state["next"])
        self.read.put_back(state["read"])

    def get(self) -> dict[str, float]:
        """The weights last set; they sum to 1."""
        return dict(self.timeline[-1][1])

    def set(self, weights: Mapping[str, float]) -> None:
        """Draw by these weights from the next chunk that isn't drawn yet (`LAG_CHUNKS` from now).

        Raises ConfigError unless every dataset is named, and no other, with finite weights >= 0 of a positive sum.
        """
        entry = (self.next_chunk, self._normalised(weights))
        self.timeline = [old for old in self.timeline if old[0] < self.next_chunk] + [entry]

    def skip(self, count: int, chunk: int) -> None:
        """Pass over `count` chunks of data from `chunk` on, which is drawn next, be it for a second time."""
        passed = self.skips[-1][1] + count
        self.skips = [old for old in self.skips if old[0] < chunk] + [(chunk, passed)]
        self.next_chunk = chunk

    def position(self, chunk: int) -> int:
        """Where in the data a chunk lies: behind those before it, and behind what was passed over."""
        return chunk + self.skips[bisect_right([start for start, _ in self.skips], chunk) - 1][1]

    def draw(self, chunk: int, count: int) -> list[int]:
        """The rows of one chunk, after which the next is drawn."""
        self.next_chunk = chunk + 1  # not the most ever: a run that goes back to a checkpoint draws from 0 again
        return self.rows(chunk, count)

    def rows(self, chunk: int, count: int) -> list[int]:
        """The rows of one chunk: of each dataset at most one below or above its exact share of `count`.

        Datasets are taken by systematic sampling (one random offset, equal strides): unbiased, and with far less noise
        in what is measured per dataset than independent draws.
        """
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
        """One row of a dataset."""
        return rng.choice(self.pools[name])

    def check_loader(self, args: Any) -> None:
        """Raises ConfigError where the loader that a trainer's arguments make cannot follow."""

    def _normalised(self, weights: Mapping[str, float]) -> dict[str, float]:
        if set(weights) != set(self.names):
            raise ConfigError(f"mixture names {sorted(weights)}; name each of {sorted(self.names)} and no other")
        total = math.fsum(weights.values())
        if not (math.isfinite(total) and total > 0 and min(weights.values()) >= 0):
            raise ConfigError(f"mixture {dict(weights)}: weights must be finite, >= 0, and of a positive sum")
        return {name: weights[name] / total for name in self.names}


class MixtureSampler(Sampler[int]):
    """Yields rows as the trainer's own sampler would have laid them out: a chunk of `prompts` rows, each `group_size`
    times in a row, the whole `repeats` times over."""

    answered = False
    """Whether training is on answers to the rows, which are sampled anew each time, and not on the rows."""

    def __init__(self, mixture: Mixture, *, prompts: int, group_size: int = 1, repeats: int = 1, chunks: int) -> None:
        """`chunks` make an epoch."""
        self.mixture, self.chunks = mixture, chunks
        self.prompts, self.group_size, self.repeats = prompts, group_size, repeats
        self.ends = chunks
        """The first chunk after the running epoch."""
        self._epoch = 0
        mixture.sampler = self

    def set_epoch(self, epoch: int) -> None:
        """accelerate says it; chunks are counted over all epochs."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        chunk, self.ends = self._epoch * self.chunks, (self._epoch + 1) * self.chunks
        while chunk < self.ends:
            rows = self.mixture.draw(chunk, self.prompts)
            for _ in range(self.repeats):
                for row in rows:
                    yield from [row] * self.group_size
            chunk = self.mixture.next_chunk  # the one after, unless a skip takes back what was drawn ahead

    def __len__(self) -> int:
        return self.chunks * self.repeats * self.prompts * self.group_size


def plug_in(trainer: Any, mixture: Mixture) -> None:
    """Put the mixture in the place of the trainer's own sampler, before `train()` makes the loader.

    Raises ConfigError when the trainer's rows are not the mixture's, one for one (packing and filtering change that).
    """
    if getattr(trainer._get_train_sampler, "oven_mixture", None) is mixture:
        return
    mixture.check_loader(trainer.args)
    rows = trainer.train_dataset
    if not hasattr(rows, "__len__") or len(rows) != len(mixture.dataset):
        held = f"{len(rows):,} rows" if hasattr(rows, "__len__") else "rows that cannot be counted"
        raise ConfigError(
            f"the trainer has {held}, the mixture {len(mixture.dataset):,}: give it train_dataset=mixture.dataset, "
            "without packing, and drop rows that are too long before"
        )
    # transformers 5.23, trainer.py: no public place takes a sampler; TRL 1.16 overrides the same method.
    made = trainer._get_train_sampler

    def sampler(dataset: Any = None) -> MixtureSampler:
        if mixture.epoch is not mixture.dataset:
            dataset = mixture.epoch
        return _laid_out_as(made() if dataset is None else made(dataset), trainer, mixture)

    sampler.oven_mixture = mixture  # type: ignore[attr-defined]
    trainer._get_train_sampler = sampler


def announce(actuators: Actuators, mixture: Mixture) -> None:
    """Where there is something to shift."""
    if len(mixture.names) > 1:
        actuators.simplex(MIXTURE, mixture.get, mixture.set, moves_own_metric=True)


def _laid_out_as(own: Any, trainer: Any, mixture: Mixture) -> MixtureSampler:
    """TRL's RepeatSampler (GRPO, RLOO, distillation) says its layout; any other yields a step's rows one by one."""
    args = trainer.args
    step = args.train_batch_size * args.world_size * args.gradient_accumulation_steps
    prompts, group, repeats = step, 1, 1
    answered = type(own).__name__ == "RepeatSampler"
    if answered:
        prompts, group, repeats = own.batch_size, own.mini_repeat_count, own.repeat_count
    chunks = ENDLESS if args.max_steps > 0 else max(1, len(own) // (prompts * group * repeats))
    sampler = MixtureSampler(mixture, prompts=prompts, group_size=group, repeats=repeats, chunks=chunks)
    sampler.answered = answered
    return sampler


def _joined(datasets: list[Any]) -> Any:
    if hasattr(datasets[0], "column_names"):  # of the datasets library
        from datasets import concatenate_datasets

        return concatenate_datasets(datasets)
    if all(isinstance(rows, list) for rows in datasets):
        return [row for rows in datasets for row in rows]
    return ConcatDataset(datasets)
