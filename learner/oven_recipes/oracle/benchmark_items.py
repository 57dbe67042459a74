"""Selects benchmark items from templates or the published files. A text's hash decides whether it is held out. Training
may only use `items(..., held_out=False)`, and evaluation only the rest."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path

from oven_core.errors import ConfigError
from oven_recipes.oracle.benchmarks import BENCHMARKS, FALSE, NO, YES, Benchmark, Item, LabelledText

HELD_OUT_DIVISOR = 4
"""One in this many texts is held out. This leaves more than 250 held-out texts per benchmark."""
DEFAULT_ITEMS = 250
"""Default number of items per benchmark. The standard error of a proportion is then at most 0.032."""


def is_held_out(text: str) -> bool:
    """Return whether `text` is reserved for evaluation."""
    return _digest(text) % HELD_OUT_DIVISOR == 0


@cache
def items(benchmark: str, *, held_out: bool) -> tuple[Item, ...]:
    """Return all template items of a benchmark's held-out or training part, each text with all its questions. Raises
    KeyError if `benchmark` is not one of the nine benchmarks."""
    definition = BENCHMARKS[benchmark]
    # Two templates may produce the same text.
    by_text = {labelled.text: labelled for labelled in definition.templates()}
    return tuple(
        Item(text, question, answer)
        for text, labelled in by_text.items()
        if is_held_out(text) is held_out
        for question, answer in definition.questions(labelled.labels)
    )


def benchmark_words() -> frozenset[str]:
    """Return every word of the nine benchmarks' template texts, questions and answers, and the marks `:` and `?`."""
    result: set[str] = {YES, NO, ":", "?"}
    for benchmark in BENCHMARKS:
        for held_out in (True, False):
            for item in items(benchmark, held_out=held_out):
                result.update(f"{item.text} {item.question}".replace("?", " ").replace(":", " ").split())
    return frozenset(result)


def template_items(benchmark: Benchmark, count: int = DEFAULT_ITEMS) -> list[Item]:
    """Return `count` held-out template items, the same each time."""
    by_text = {labelled.text: labelled for labelled in benchmark.templates()}
    held_out_texts = [labelled for text, labelled in by_text.items() if is_held_out(text)]
    return select_items(benchmark, held_out_texts, count, f"templates of {benchmark.name}")


def published_items(benchmark: Benchmark, folder: Path, count: int = DEFAULT_ITEMS) -> list[Item]:
    """Return `count` items from the published files in `folder`, the same each time."""
    paths: list[Path] = []
    for pattern in benchmark.files:  # use the first pattern that matches a file
        paths = paths or sorted(path for path in folder.glob(pattern) if path.is_file())
    if not paths:
        raise ConfigError(
            f"{folder} contains no {' or '.join(benchmark.files)}; add the published files of {benchmark.name}, or "
            "remove the folder to use templates instead"
        )
    by_text = {labelled.text: labelled for path in paths for labelled in benchmark.read(path) if labelled.text.strip()}
    return select_items(benchmark, by_text.values(), count, str(paths[0]) if len(paths) == 1 else str(folder))


def select_items(benchmark: Benchmark, texts: Iterable[LabelledText], count: int, source: str) -> list[Item]:
    """Return `count` items, each about a different text. The same texts give the same items. All questions occur
    equally often, and half of the answers to each are yes, so guessing from the question is right half of the time.
    Raises ConfigError if `source` has too few texts, or too few with one of the answers."""
    shuffled = sorted(texts, key=lambda text: _digest(f"{benchmark.name}:{text.text}"))
    if len(shuffled) < count:
        raise ConfigError(
            f"{source} has {len(shuffled)} usable rows, but {count} are needed; add rows, or reduce --items"
        )
    pairs = [(question, answer) for question, _ in benchmark.questions(FALSE) for answer in (YES, NO)]
    # The number of items that each pair still needs.
    remaining = {pair: (count + position) // len(pairs) for position, pair in enumerate(pairs)}
    selected: list[Item] = []
    for text in shuffled:
        pair = max(benchmark.questions(text.labels), key=lambda candidate: remaining[candidate])
        if remaining[pair] > 0:
            remaining[pair] -= 1
            selected.append(Item(text.text, *pair, text.location))
    if len(selected) < count:
        (question, answer), missing_count = max(remaining.items(), key=lambda shortage: shortage[1])
        raise ConfigError(
            f"{source}: of {len(shuffled)} rows, {missing_count} too few have the answer {answer} to {question!r}, so "
            f"{count} items cannot be balanced; add rows with other labels, or reduce --items"
        )
    return selected


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
