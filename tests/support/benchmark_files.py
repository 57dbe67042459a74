"""The nine benchmarks' published layouts, filled with rows of our own."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

COUNT = 60
"""Texts of each benchmark."""
READ = {"sst2": "dev.tsv", "snli": "*dev.jsonl"}
"""Of benchmarks that have other files as well, those that are read."""


def geometry_of_truth(folder: Path) -> None:
    rows = [(f'The number {n}, called "{n}", is even.', int(n % 2 == 0)) for n in range(COUNT)]
    _csv(folder / "cities.csv", "statement,label,city", [(*row, "x") for row in rows[:30]])
    _csv(folder / "larger_than.csv", "statement,label", rows[30:])


def relations(folder: Path) -> None:
    samples = [{"subject": f"Country {n}", "object": f"City {n}"} for n in range(COUNT)]
    relation = {"name": "capital", "prompt_templates": ["The capital of {} is"], "prompt_templates_zs": ["x {}"]}
    (folder / "factual").mkdir()
    (folder / "factual" / "capital.json").write_text(json.dumps({**relation, "samples": samples}))


def sst2(folder: Path) -> None:
    lines = [f'a "quoted film number {n} \t{n % 2}' for n in range(COUNT)]  # GLUE quotes nothing
    (folder / "test.tsv").write_text("index\tsentence\n0\twithout a label\n")  # as GLUE has it
    (folder / "dev.tsv").write_text("\n".join(["sentence\tlabel", *lines, ""]))


def md_gender(folder: Path) -> None:
    genders = ("female", "male", "gender-neutral")
    rows = [{"text": f"Person {n} sings.", "title": "x", "persona": "x", "gender": genders[n % 3]} for n in range(90)]
    (folder / "valid.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def snli(folder: Path) -> None:
    labels = ("entailment", "contradiction", "neutral", "-")
    rows = [
        {"gold_label": labels[n % 4], "sentence1": f"A man has {n} dogs.", "sentence2": "He has pets.", "pairID": "x"}
        for n in range(120)
    ]
    (folder / "snli_1.0_train.jsonl").write_text("not read: there is a part for development\n")
    (folder / "snli_1.0_dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def ag_news(folder: Path) -> None:
    rows = [(n % 4 + 1, f"Title {n}", f'Report {n}, "quoted", at length.') for n in range(COUNT)]
    _csv(folder / "test.csv", "Class Index,Title,Description", rows)


def ner(folder: Path) -> None:
    kinds = (("Anna", "B-per"), ("Paris", "B-geo"), ("NATO", "B-org"), ("French", "B-gpe"), ("Monday", "B-tim"))
    rows = []
    for n in range(COUNT):
        rows.append((f"Sentence: {n + 1}", f"Number{n}", "CD", "O"))
        rows += [("", word, "NNP", tag) for word, tag in (kinds[n % 5], kinds[(n + 1) % 5])]
        rows.append(("", '"', "``", "O"))
    _csv(folder / "ner.csv", "Sentence #,Word,POS,Tag", rows)


def tense(folder: Path) -> None:
    labels = ("past", "present", "future")
    rows = [{"sentence": f"It happens {n} times.", "label": labels[n % 3]} for n in range(COUNT)]
    (folder / "tense_processed.json").write_text(json.dumps(rows))


def singular_plural(folder: Path) -> None:
    rows = [(f"The dogs, all {n}, bark.", ("single", "multiple")[n % 2]) for n in range(COUNT)]
    _csv(folder / "singular_plural.csv", "sentence,n_subjects", rows)


LAYOUTS: tuple[Callable[[Path], None], ...] = (
    geometry_of_truth, relations, sst2, md_gender, snli, ag_news, ner, tense, singular_plural,
)  # fmt: skip


def publish(folder: Path) -> Path:
    """Write all nine benchmarks below `folder`, each in a folder of its name, and return `folder`."""
    for layout in LAYOUTS:
        of_it = folder / layout.__name__
        of_it.mkdir(parents=True)
        layout(of_it)
    return folder


def _csv(path: Path, header: str, rows: Sequence[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_MINIMAL).writerows([header.split(","), *rows])
    path.write_text(text.getvalue())
