"""Runs of the experiment: the real recipe and trainer in this process, one after another."""

from __future__ import annotations

import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

import torch

from oven_bench.source_swarm.arms import SERVED, Arm, Scores, applied
from oven_bench.source_swarm.figures import Row
from oven_bench.training.graph_scores import GraphScores, scores_of_folder, scores_of_sources
from oven_core import plugins
from oven_core.errors import ProcessError
from oven_recipes.pretrain import corpus, tokens
from oven_recipes.pretrain.job import METRIC, served_metric
from oven_recipes.pretrain.settings import PretrainSettings


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


def score_files(scores: GraphScores, folder: Path, seed: int) -> dict[Scores, str]:
    """What the recipe reads: the scores, and the same ones on tokens that the seed draws."""
    found: dict[Scores, str] = {}
    kinds: tuple[tuple[Scores, bytes], ...] = (("graph", scores.blob), ("shuffled", scores.shuffled(seed)))
    for kind, blob in kinds:
        path = folder / f"{kind}.bin"
        path.write_bytes(blob)
        found[kind] = str(path)
    return found


def corpus_scores(size: Size, cache: Path, graph: Path | None) -> GraphScores:
    """For the recipe's vocabulary: of the graph in the folder `graph`, or of the sources that are trained on."""
    settings = PretrainSettings.model_validate(dict(size.settings))
    parts = corpus.read(settings.corpus, settings.held_out, int(settings.corpus_megabytes * 1e6))
    texts = tokens.tokenized(parts, settings.vocabulary, cache).texts
    if graph is not None:
        return scores_of_folder(graph, texts)
    root = Path(sysconfig.get_path("stdlib"))
    return scores_of_sources([root / file.path for part in parts for file in part.train], texts)


def play(arm: Arm, seed: int, size: Size, scores: GraphScores, home: Path) -> Row:
    """One run from the source's start. A seed has one initialisation and one order of batches in all arms, and every
    gradient step counts, those included that a rollback throws away. Raises ProcessError for a run that was stopped,
    as by SIGTERM: it has no figure."""
    from oven_recipes.pretrain.job import build
    from oven_recipes.runner import prepared

    torch.set_num_threads(1)
    began = time.process_time()
    link = arm.link(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        options = {**size.settings, **arm.start(score_files(scores, folder, seed)), "max_steps": size.steps}
        recipe = plugins.load("recipes", "recipe", "pretrain")
        job = prepared(recipe, build, options, "tuned", seed, folder, home / "cache")
        attachment = job.attach(link=link, charge_rollbacks=True)
        job.trainer.train()
        if attachment.client is None or attachment.client.stopping:
            raise ProcessError(f"seed {seed}, {arm.name}: stopped before its end; call again to play it")
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
