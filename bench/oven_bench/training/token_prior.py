"""`bench token-prior`: does a knowledge graph in a kilobyte help a model that begins from nothing?

The experiment that this project's graph comes from: a graph of half a million nodes is distilled into scores of 358
tokens, in under a kilobyte, which scale the rows of the embedding at the start (row × (1 + ½ score); embeddings tied).
It was reported without a run in which the graph was off. Here the graph is drawn from the standard library's own
sources, of the files trained on alone, or is a large one that is given. Every seed is run with: `baseline` nothing;
`kg` its scores; `shuffled` the same scores on other tokens; `frequency` the same profile on the most frequent tokens;
`unigram` no scores, but the corpus' own log probabilities, 4 bits each, as the start of a learnt output bias. A seed
has one initialisation and one order of batches in all arms. Bits per byte on held-out files at the end; less is better.

HELPS only if the graph beats the baseline, the shuffled scores and frequency alike. NO EFFECT if one of them is surely
about as good as the graph, or better. INCONCLUSIVE otherwise, and below five seeds.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter
from typer import Option

from oven_bench.bench_command import Bench, GraphFolder, Json, ResultsFile, print_object
from oven_bench.results_file import Kept
from oven_bench.statistics import Word, paired, word
from oven_bench.training.graph_scores import GraphScores, scores_of_folder, scores_of_sources
from oven_core.errors import ConfigError

ARMS: Final = ("baseline", "kg", "shuffled", "frequency", "unigram")
VOCABULARY, LENGTH, BATCH = 1024, 128, 8
SCALE: Final = 0.5
LEVELS: Final = 15
ENOUGH: Final = 5
SMALLEST: Final = 0.02
"""Bits per byte: the smallest gain that is of interest, about a hundredth of what such a model needs."""


@dataclass(frozen=True, slots=True)
class Size:
    files: int
    seeds: int
    steps: int
    width: int
    layers: int


FULL = Size(files=400, seeds=5, steps=300, width=96, layers=3)
QUICK = Size(files=16, seeds=2, steps=4, width=32, layers=1)


@dataclass(frozen=True, slots=True)
class Corpus:
    train: torch.Tensor  # [tokens] int64
    held_out: torch.Tensor  # [windows, LENGTH + 1] int64
    lengths: torch.Tensor  # [VOCABULARY] bytes of each token
    texts: list[str]
    files: list[Path]
    """Those trained on."""


def corpus(limit: int) -> Corpus:
    """The standard library's modules without their tests, in an order that is not alphabetical; every eighth file is
    held out. The tokenizer is a byte-level BPE of the files trained on."""
    from tokenizers import ByteLevelBPETokenizer

    root = Path(sysconfig.get_path("stdlib"))
    passed = {"test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"}
    found = sorted(path for path in root.rglob("*.py") if not passed & set(path.relative_to(root).parts))
    random.Random(0).shuffle(found)
    texts = [(path, path.read_text(encoding="utf-8", errors="ignore")) for path in found[:limit]]
    train = [(path, text) for at, (path, text) in enumerate(texts) if at % 8]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator((text for _, text in train), vocab_size=VOCABULARY, show_progress=False)
    names = [tokenizer.id_to_token(id_) or "" for id_ in range(VOCABULARY)]
    held = tokenizer.encode("\n".join(text for at, (_, text) in enumerate(texts) if at % 8 == 0)).ids
    windows = min(64, len(held) // (LENGTH + 1))
    at = torch.linspace(0, len(held) - LENGTH - 1, windows).long()
    return Corpus(
        train=torch.tensor([id_ for _, text in train for id_ in tokenizer.encode(text).ids]),
        held_out=torch.stack([torch.tensor(held[i : i + LENGTH + 1]) for i in at.tolist()]),
        lengths=torch.tensor([len(name) for name in names]),  # a character of the byte-level alphabet is a byte
        texts=[tokenizer.decode([id_]) for id_ in range(VOCABULARY)],
        files=[path for path, _ in train],
    )


class Model(torch.nn.Module):
    """A small Llama with tied embeddings and a bias on its output."""

    def __init__(self, size: Size, seed: int) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        torch.manual_seed(seed)
        self.core = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=size.width,
                intermediate_size=4 * size.width,
                num_hidden_layers=size.layers,
                num_attention_heads=4,
                max_position_embeddings=LENGTH,
                tie_word_embeddings=True,
            )
        )
        self.bias = torch.nn.Parameter(torch.zeros(VOCABULARY))

    @property
    def rows(self) -> torch.nn.Parameter:  # [VOCABULARY, width]
        return self.core.get_parameter("model.embed_tokens.weight")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # [batch, LENGTH + 1] → nats of each, [batch, LENGTH]
        logits = self.core(tokens[:, :-1], use_cache=False).logits + self.bias
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


def begin(model: Model, arm: str, scores: Mapping[int, float], counts: Counter[int], seed: int) -> None:
    """The arm's start, on top of the initialisation that all share."""
    if arm == "unigram":
        model.bias.data = quantised(counts)
        return
    ids, values = list(scores), list(scores.values())
    if arm == "shuffled":
        ids = random.Random(seed).sample(range(VOCABULARY), len(ids))
    elif arm == "frequency":
        ids = [id_ for id_, _ in counts.most_common(len(ids))]
        values = sorted(values, reverse=True)
    if arm != "baseline":
        model.rows.data[ids] *= 1 + SCALE * torch.tensor(values).unsqueeze(1)


def quantised(counts: Counter[int]) -> torch.Tensor:
    """Log probabilities with add-one smoothing, on 16 levels: half a kilobyte for 1,024 tokens."""
    logs = torch.tensor([counts[id_] + 1.0 for id_ in range(VOCABULARY)]).log()
    logs -= logs.logsumexp(0)
    low, high = logs.min(), logs.max()
    return low + (high - low) * ((logs - low) / (high - low) * LEVELS).round() / LEVELS


def trained(size: Size, data: Corpus, arm: str, scores: Mapping[int, float], seed: int) -> float:
    """Held-out bits per byte after `size.steps`."""
    model = Model(size, seed)
    begin(model, arm, scores, Counter(data.train.tolist()), seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    places = torch.Generator().manual_seed(seed)
    for step in range(size.steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 20)
        starts = torch.randint(len(data.train) - LENGTH - 1, (BATCH,), generator=places).tolist()
        loss = model(torch.stack([data.train[at : at + LENGTH + 1] for at in starts])).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        nats: float = sum(
            model(data.held_out[at : at + BATCH]).sum().item() for at in range(0, len(data.held_out), BATCH)
        )
    return nats / math.log(2) / int(data.lengths[data.held_out[:, 1:]].sum())


class MadeWith(BaseModel):
    """The header of a results file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: str
    """Of the runs; more seeds may follow."""
    scores: str
    """SHA-256 of the tokens' scores."""


class Row(BaseModel):
    """One run: held-out bits per byte at its end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    arm: str
    bits: float
    cpu_s: float


def measure(size: Size, graph: Path | None, results: Path | None, say: Callable[[str], None]) -> dict[str, Any]:
    seeds = size.seeds
    data = corpus(size.files)
    prior = scores_of_folder(graph, data.texts) if graph else scores_of_sources(data.files, data.texts)
    with tempfile.TemporaryDirectory() as scratch:
        rows = _rows(size, data, prior, results or Path(scratch) / "rows.jsonl", say)
    bits = {arm: [row.bits for row in rows if row.arm == arm] for arm in ARMS}
    found: dict[str, Any] = {
        "seeds": seeds,
        "steps": size.steps,
        **prior.figures,
        "bits_per_byte": {arm: round(fmean(values), 4) for arm, values in bits.items()},
        "cpu_s": round(sum(row.cpu_s for row in rows), 1),
    }
    if seeds >= 2:
        gains = {other: paired(bits[other], bits["kg"]) for other in ARMS if other != "kg"}
        found["gain_of_kg_over"] = {
            other: {"mean": round(gain.mean, 4), "low": round(gain.low, 4), "high": round(gain.high, 4)}
            for other, gain in gains.items()
        }
        found["gain_of_unigram"] = round(fmean(bits["baseline"]) - fmean(bits["unigram"]), 4)
        verdicts = {other: word(gain.low, gain.high, SMALLEST) for other, gain in gains.items()}
    else:
        verdicts = {}
    return found | {"verdict": verdict(verdicts, seeds)}


def _rows(size: Size, data: Corpus, prior: GraphScores, file: Path, say: Callable[[str], None]) -> list[Row]:
    """One run for each seed and arm, by seed; those that the file has are not run again."""
    made_with = MadeWith(size=repr(replace(size, seeds=0)), scores=hashlib.sha256(prior.blob).hexdigest())
    kept = Kept(file, made_with, TypeAdapter(Row))
    known = {(row.seed, row.arm): row for row in kept.rows}
    wanted = [(seed, arm) for seed in range(1, size.seeds + 1) for arm in ARMS]
    for seed, arm in wanted:
        if (seed, arm) not in known:
            began = time.process_time()
            bits = trained(size, data, arm, prior.scores, seed)
            known[seed, arm] = row = Row(seed=seed, arm=arm, bits=bits, cpu_s=round(time.process_time() - began, 1))
            kept.append(row)
            say(f"seed {seed}, {arm}: {bits:.4f} bits per byte")
    return [known[one] for one in wanted]


def verdict(against: Mapping[str, Word], seeds: int) -> Word:
    """Of the graph: what it does beyond what nothing, any scores, or frequency would have done. `against` has the word
    for the graph's gain over each."""
    if seeds < ENOUGH:
        return "INCONCLUSIVE"
    if against["baseline"] == "HARMS":
        return "HARMS"
    controls = {against[arm] for arm in ("baseline", "shuffled", "frequency")}
    if controls == {"HELPS"}:
        return "HELPS"
    return "NO EFFECT" if controls & {"NO EFFECT", "HARMS"} else "INCONCLUSIVE"


def bench(
    seeds: Annotated[
        int | None, Option(help="Paired seeds.", show_default=f"{FULL.seeds}; {QUICK.seeds} with --quick")
    ] = None,
    steps: Annotated[
        int | None, Option(help="Steps of each run.", show_default=f"{FULL.steps}; {QUICK.steps} with --quick")
    ] = None,
    graph: GraphFolder = None,
    results: ResultsFile = None,
    quick: Annotated[bool, Option("--quick", help="A few steps on a few files, to see that it runs.")] = False,
    as_json: Json = False,
) -> int:
    base = QUICK if quick else FULL
    size = replace(
        base,
        seeds=base.seeds if seeds is None else seeds,
        steps=base.steps if steps is None else steps,
    )
    if size.seeds < 1 or size.steps < 1:
        raise ConfigError(f"--seeds {size.seeds} and --steps {size.steps} must be at least 1")
    found = measure(size, graph, results, lambda line: print(line, file=sys.stderr, flush=True))
    print_object(found, as_json)
    return 0


BENCH = Bench(
    "token-prior",
    bench,
    "a model's start scaled by a graph's token scores, against shuffled scores, frequency and a unigram",
    "--seeds 5 --json",
)
