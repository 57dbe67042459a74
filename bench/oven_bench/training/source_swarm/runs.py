"""Runs of the experiment: the real recipe and trainer in this process, one after another."""

from __future__ import annotations

import random
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch

from oven_bench.training.source_swarm.arms import SERVED, Arm, Scores, applied
from oven_bench.training.source_swarm.figures import Row
from oven_controller import plugins
from oven_controller.protocol.token_scores import decode, encode, vocabulary_sha
from oven_learner.recipes.pretrain import corpus, tokens
from oven_learner.recipes.pretrain.evaluation import METRIC, served_metric
from oven_learner.recipes.pretrain.settings import PretrainSettings

TOKENS: Final = 358
"""That have a score: as many as in the source."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of the runs: steps, and further settings of the recipe."""

    steps: int
    settings: Mapping[str, object]


FULL: Final = Size(
    300, {"hidden": 64, "layers": 2, "heads": 4, "ffn": 256, "batch": 8, "eval_every": 50, "eval_rows": 128}
)
QUICK: Final = Size(
    27,
    {"hidden": 32, "layers": 1, "heads": 2, "ffn": 64, "batch": 2, "context": 32, "vocabulary": 300,
     "corpus_megabytes": 0.2, "eval_every": 9, "eval_rows": 8, "lr_warmup_steps": 3},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prior:
    """A graph's token scores as a file holds them, for one vocabulary."""

    blob: bytes
    size: int
    sha: str
    nodes: int
    edges: int

    @property
    def tokens(self) -> int:
        """That have a score."""
        return len(decode(self.blob, self.size, self.sha))

    def files(self, folder: Path, seed: int) -> dict[Scores, str]:
        """The files with the scores, and with the same scores on tokens that the seed draws."""
        scores = decode(self.blob, self.size, self.sha)
        ids = random.Random(seed).sample(range(self.size), len(scores))
        shuffled = encode(dict(zip(ids, scores.values(), strict=True)), self.size, self.sha)
        found: dict[Scores, str] = {}
        for kind, blob in (("graph", self.blob), ("shuffled", shuffled)):
            path = folder / f"{kind}-{seed}.bin"
            path.write_bytes(blob)
            found[kind] = str(path)  # type: ignore[index]
        return found


def corpus_prior(size: Size, cache: Path) -> Prior:
    """Of the graph that the files trained on make: names, and what they call, raise, catch and contain."""
    settings = PretrainSettings.model_validate(dict(size.settings))
    parts = corpus.read(settings.corpus, settings.held_out, int(settings.corpus_megabytes * 1e6))
    words = tokens.tokenized(parts, settings.vocabulary, cache)
    root = settings.corpus or Path(sysconfig.get_path("stdlib"))
    files = [root / file.path for part in parts for file in part.train]
    made: Any = plugins.load("in_process", "function", "source_prior")(files, words.texts, TOKENS)
    return Prior(made.blob, len(words.texts), vocabulary_sha(words.texts), made.nodes, made.edges)


def play(arm: Arm, seed: int, size: Size, prior: Prior, home: Path) -> Row:
    """One run from the source's start. A seed has one initialisation and one order of batches in all arms, and every
    gradient step counts, those included that a rollback throws away."""
    from oven_learner.recipes.pretrain.job import build
    from oven_learner.recipes.runner import prepared

    torch.set_num_threads(1)
    began = time.process_time()
    link = arm.link(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        options = {**size.settings, **arm.start(prior.files(folder, seed)), "max_steps": size.steps}
        recipe = plugins.load("recipes", "recipe", "pretrain")
        job = prepared(recipe, build, options, "tuned", seed, folder, home / "cache")
        job.attach(link=link, charge_rollbacks=True)
        job.trainer.train()
        found = job.evaluate()
    return Row(
        arm=arm.name,
        seed=seed,
        served=_mean(found[served_metric(SERVED)]),
        exact=_mean(found[METRIC]),
        turned=dict(Counter(receipt.actuator for receipt in applied(link))),
        cpu_s=round(time.process_time() - began, 1),
    )


def _mean(measured: float | Sequence[float]) -> float:
    return measured if isinstance(measured, float) else fmean(measured)
