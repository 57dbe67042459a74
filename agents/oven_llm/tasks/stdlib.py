"""The task `stdlib`: questions about modules of the installed standard library, in QASPER's layout. They need no
download, and their answers are right by `ast`; another Python has other sources, so that its data differ."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from oven_core.errors import ConfigError
from oven_llm.tasks.example import YES, Example, Reference
from oven_llm.tasks.qasper import INSTRUCTIONS, examples_in, examples_of
from oven_llm.tasks.source_paragraphs import Source, source_of
from oven_llm.tasks.source_questions import MAKERS

SIZES: Final = (6_000, 120_000)
"""Characters of a source, least and most: a shorter one fits any window, a longer one is rarely a single subject."""
LEFT_OUT: Final = frozenset(("distutils", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "turtledemo"))
"""Programs of their own, tables, and what is about to be removed."""


class Stdlib:
    """What `supervise data` wrote, or questions made anew from a seed."""

    name = "stdlib"
    instructions = INSTRUCTIONS

    def examples(self, data: Path | None, seed: int, count: int) -> list[Example]:
        """Raises ConfigError for a file that is missing or damaged, and where there are not so many questions."""
        return examples_of(data) if data is not None else examples_in(made(seed, count).items(), "the questions made")


def made(seed: int, count: int) -> dict[str, Any]:
    """`count` questions, in the released layout: module → document with `qas`. Raises ConfigError where the installed
    sources do not have so many, and for a count below 1."""
    if count < 1:
        raise ConfigError(f"{count} questions are asked for; give 1 or more")
    draw = random.Random(seed)
    modules = list(_modules())
    found: dict[str, Any] = {}
    left = count
    previous: Source | None = None
    for name, path in draw.sample(modules, len(modules)):
        source = _read(name, path)
        if source is None:
            continue
        if previous is not None:
            asked = list(_questions(source, previous, random.Random(f"{seed} {name}")))[:left]
            left -= len(asked)
            if asked:
                found[name] = _document(source, asked)
        previous = source
        if not left:
            return found
    raise ConfigError(
        f"{count} questions are asked for, and the installed sources give {count - left}; give at most so many"
    )


def _modules() -> Iterator[tuple[str, Path]]:
    """(module, its file) of the standard library, by name."""
    root = Path(sysconfig.get_path("stdlib"))
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(one for one in folders if _is_read(one))
        for name in sorted(files):
            path = Path(folder, name)
            if name.endswith(".py") and _is_read(path.stem) and SIZES[0] <= path.stat().st_size <= SIZES[1]:
                yield ".".join(path.relative_to(root).with_suffix("").parts), path


def _is_read(name: str) -> bool:
    hidden = name.startswith("_") or "-" in name  # site-packages, lib-dynload, config-3.11-…
    return not hidden and "test" not in name and name not in LEFT_OUT


def _read(name: str, path: Path) -> Source | None:
    """None for what is not Python of this version in UTF-8."""
    try:
        return source_of(name, path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _questions(source: Source, other: Source, draw: random.Random) -> Iterator[tuple[str, Reference]]:
    """At most one of each maker."""
    for _, maker in MAKERS:
        if (asked := next(maker(source, other, draw), None)) is not None:
            yield asked.question, asked.reference


def _document(source: Source, asked: Sequence[tuple[str, Reference]]) -> dict[str, Any]:
    sections: dict[str, list[str]] = {}
    for paragraph in source.paragraphs:
        sections.setdefault(paragraph.section, []).append(paragraph.text)
    return {
        "title": source.module,
        "abstract": "",
        "python": platform.python_version(),
        "full_text": [{"section_name": name, "paragraphs": texts} for name, texts in sections.items()],
        "qas": [_record(source.module, question, reference) for question, reference in asked],
    }


def _record(module: str, question: str, reference: Reference) -> dict[str, Any]:
    key = hashlib.sha256(json.dumps([module, question]).encode()).hexdigest()[:40]
    kind = reference.kind
    answer = {
        "unanswerable": kind == "none",
        "extractive_spans": [reference.answer] if kind == "extractive" else [],
        "yes_no": reference.answer == YES if kind == "boolean" else None,
        "free_form_answer": reference.answer if kind == "abstractive" else "",
        "evidence": list(reference.evidence),
        "highlighted_evidence": [],
    }
    return {"question": question, "question_id": key, "answers": [{"answer": answer, "annotation_id": f"ast-{key}"}]}


TASK = Stdlib()
