"""Benchmark items for training and evaluation, from templates or the published files. A hash of each text decides its
split: training may only use `items(..., held_out=False)`, evaluation only the others."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path

from oven_core.errors import ConfigError
from oven_recipes.oracle.benchmarks import BENCHMARKS, FALSE, NO, YES, Benchmark, Item, Labelled

HELD_OUT_SHARE = 4
"""One in this many texts is held out. A quarter of each benchmark has over 250 texts, with enough of both answers."""
ITEMS = 250
"""Number of items per benchmark, so that a proportion's standard error is at most 0.032."""


def is_held_out(text: str) -> bool:
    """Return True if the hash of `text` reserves it for evaluation."""
    return _digest(text) % HELD_OUT_SHARE == 0


@cache
def items(benchmark: str, *, held_out: bool) -> tuple[Item, ...]:
    """Every template item of a benchmark's held-out or training part, each text with all its questions.

    Raises:
        KeyError: `benchmark` is not one of the nine.
    """
    templates = BENCHMARKS[benchmark]
    labelled = {text.text: text for text in templates.templates()}  # a text made by two frames counts once
    return tuple(
        Item(text.text, question, answer)
        for text in labelled.values()
        if is_held_out(text.text) is held_out
        for question, answer in templates.questions(text.labels)
    )


def words() -> frozenset[str]:
    """Return every word of the nine benchmarks' texts, questions and answers, split at spaces, `:` and `?`."""
    words: set[str] = {YES, NO, ":", "?"}
    for benchmark in BENCHMARKS:
        for part in (True, False):
            for item in items(benchmark, held_out=part):
                words.update(f"{item.text} {item.question}".replace("?", " ").replace(":", " ").split())
    return frozenset(words)


def template_items(benchmark: Benchmark, count: int = ITEMS) -> list[Item]:
    """Return `count` held-out template items, the same each time."""
    texts = {text.text: text for text in benchmark.templates()}
    held_out = [text for text in texts.values() if is_held_out(text.text)]
    return drawn(benchmark, held_out, count, f"templates of {benchmark.name}")


def published_items(benchmark: Benchmark, folder: Path, count: int = ITEMS) -> list[Item]:
    """Return `count` items from the published files in `folder`, the same each time."""
    by_pattern = (sorted(path for path in folder.glob(pattern) if path.is_file()) for pattern in benchmark.files)
    paths = next(filter(None, by_pattern), [])
    if not paths:
        raise ConfigError(
            f"{folder}: there is no {' or '.join(benchmark.files)} in it; put {benchmark.name}'s published files "
            "there, or remove the folder to have templates in their place"
        )
    texts = {text.text: text for path in paths for text in benchmark.read(path) if text.text.strip()}
    return drawn(benchmark, list(texts.values()), count, str(paths[0]) if len(paths) == 1 else str(folder))


def drawn(benchmark: Benchmark, texts: Iterable[Labelled], count: int, source: str) -> list[Item]:
    """Return `count` items, each about a different text. The choice depends only on the texts. All questions occur
    equally often, and half of the answers are yes, so the question alone gives an accuracy of one half. Raises
    ConfigError if `source` has too few texts, or too few with one of the answers."""
    shuffled = sorted(texts, key=lambda text: _digest(f"{benchmark.name}:{text.text}"))
    if len(shuffled) < count:
        raise ConfigError(
            f"{source}: {len(shuffled)} rows can be asked about, and {count} are needed; add rows, or ask for fewer "
            "(--items)"
        )
    pairs = [(question, answer) for question, _ in benchmark.questions(FALSE) for answer in (YES, NO)]
    wanted = {pair: (count + position) // len(pairs) for position, pair in enumerate(pairs)}
    items_so_far: list[Item] = []
    for text in shuffled:
        pair = max(benchmark.questions(text.labels), key=lambda candidate: wanted[candidate])
        if wanted[pair] > 0:
            wanted[pair] -= 1
            items_so_far.append(Item(text.text, *pair, text.where))
    if len(items_so_far) < count:
        (question, answer), short = max(wanted.items(), key=lambda shortage: shortage[1])
        raise ConfigError(
            f"{source}: {short} more of its {len(shuffled)} rows should answer {question!r} with {answer}, so that "
            f"{count} items ask each question as often as the others; add rows with other labels, or ask for fewer "
            "(--items)"
        )
    return items_so_far


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
