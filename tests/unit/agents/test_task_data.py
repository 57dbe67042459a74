"""QASPER's two layouts, damaged files, and questions about the library's sources."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from oven_controller.cli.main import run
from oven_core.errors import ConfigError
from oven_llm.supervisor.context_files import read_context
from oven_llm.tasks.example import Example
from oven_llm.tasks.qasper import TASK as QASPER
from oven_llm.tasks.qasper import examples_of
from oven_llm.tasks.source_paragraphs import source_of
from oven_llm.tasks.stdlib import TASK as STDLIB
from oven_llm.tasks.stdlib import made

FILES = Path(__file__).parents[2] / "support" / "qasper"


def test_the_released_file_and_the_hubs_rows_are_the_same_examples(tmp_path: Path) -> None:
    released = examples_of(FILES / "released.json")
    row = json.loads((FILES / "hub.jsonl").read_text())
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [{"row_idx": 0, "row": row}]}))
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist([row]), tmp_path / "rows.parquet")
    for other in (FILES / "hub.jsonl", tmp_path / "rows.json", tmp_path / "rows.parquet"):
        assert examples_of(other) == released
    said = {one.id: [(found.answer, found.kind, len(found.evidence)) for found in one.references] for one in released}
    assert said == {
        "q-spans": [("CRF, BiLSTM", "extractive", 1), ("a CRF and a BiLSTM", "abstractive", 2)],
        "q-free": [("93.4 F1 on held-out letters", "abstractive", 1)],
        "q-yes": [("Yes", "boolean", 1), ("Unanswerable", "none", 0)],
        "q-no": [("No", "boolean", 1)],
        "q-none": [("Unanswerable", "none", 0)],
    }
    paragraphs = released[0].document.paragraphs
    assert paragraphs[:2] == ("Old letters are tagged.", "## Introduction")
    assert paragraphs[-2:] == ("## Figures and tables", "Table 1: F1 of both taggers.") and "" not in paragraphs


def test_a_text_of_the_data_may_have_other_lines_ends_than_a_file(tmp_path: Path) -> None:
    row = json.loads((FILES / "hub.jsonl").read_text())
    row["title"] = "Old\u2028letters\u0085"
    (tmp_path / "rows.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n")
    assert examples_of(tmp_path / "rows.jsonl")[0].document.title == row["title"]
    assert read_context([str(tmp_path / "rows.jsonl")]) == [row]


def released(tmp_path: Path, change: Any) -> Path:
    papers = json.loads((FILES / "released.json").read_text())
    change(papers["2101.00001"])
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(papers))
    return path


def test_of_a_question_id_that_stands_twice_the_last_counts(tmp_path: Path) -> None:
    def twice(paper: Any) -> None:
        paper["qas"][1]["question_id"] = "q-spans"

    found = examples_of(released(tmp_path, twice))
    assert len(found) == 4 and found[0].question == "How good is the better one?"


def test_files_that_are_missing_cut_or_of_another_form_say_what_to_do(tmp_path: Path) -> None:
    whole = (FILES / "released.json").read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(whole[: len(whole) // 2])
    empty, other, lines = tmp_path / "empty.json", tmp_path / "other.json", tmp_path / "rows.jsonl"
    empty.write_text("")
    other.write_text('{"a": 3}')
    lines.write_text((FILES / "hub.jsonl").read_text() + '{"id": "cut", "ful')
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")

    def no_answer(paper: Any) -> None:
        paper["qas"][0]["answers"][0]["answer"]["extractive_spans"] = []

    def no_question(paper: Any) -> None:
        del paper["qas"][0]["question"]

    for path, said in (
        (tmp_path / "none.json", "there is no data file"),
        (cut, "cut or damaged"),
        (empty, "is empty"),
        (other, "not a paper"),
        (lines, "damaged at line 2"),
        (binary, "not UTF-8"),
        (tmp_path, "it is a folder"),
        (released(tmp_path, no_answer), "not marked unanswerable"),
    ):
        with pytest.raises(ConfigError, match=said):
            examples_of(path)
    with pytest.raises(ConfigError, match="a question lacks 'question'"):
        examples_of(released(tmp_path, no_question))
    with pytest.raises(ConfigError, match="name the JSON with --data"):
        QASPER.examples(None, 1, 10)


SOURCE = '''
"""A module."""
LIMIT = 3


def first(a, b=1, *rest, key="x", **more):
    def inner():
        yield a
    return inner


def twice(): ...
def twice(): ...


class Base:
    pass


class Other(Base, dict):
    """It has two methods."""

    size = 4

    def one(self):
        yield 1

    __iter__ = one

    @property
    def two(self): return 2
'''


def test_a_source_is_cut_at_its_definitions() -> None:
    found = source_of("m", SOURCE)
    assert [one.name for one in found.functions] == ["first", "Other.one", "Other.two"]  # not one that is defined twice
    assert [(one.name, len(one.paragraphs)) for one in found.classes] == [("Base", 1), ("Other", 3)]
    texts = [one.text for one in found.paragraphs]
    assert "    @property\n    def two(self): return 2" in texts and "    __iter__ = one" in texts
    kept = {line.strip() for text in texts for line in text.splitlines() if line.strip()}
    assert kept == {line.strip() for line in SOURCE.splitlines() if line.strip()}


@pytest.fixture(scope="module")
def questions() -> list[Example]:
    return STDLIB.examples(None, 7, 70)


def test_questions_are_the_same_for_a_seed_and_others_for_another(questions: list[Example]) -> None:
    assert STDLIB.examples(None, 7, 12) == questions[:12]
    assert {one.id for one in STDLIB.examples(None, 8, 12)} != {one.id for one in questions[:12]}
    assert {one.references[0].kind for one in questions} == {"extractive", "abstractive", "boolean", "none"}
    for one in questions:
        assert set(one.references[0].evidence) <= set(one.document.paragraphs)
        assert bool(one.references[0].evidence) == (one.references[0].kind != "none")


def test_answers_are_what_the_running_modules_say(questions: list[Example]) -> None:
    """By `inspect` of the imported module: nothing of the source's parsing is used."""
    checked = 0
    for one in questions:
        names = one.question.split("`")[1::2]
        answer = one.references[0].answer
        try:
            with warnings.catch_warnings(action="ignore"):
                module = importlib.import_module(one.document.title)
            if one.question.startswith("Which classes"):
                bases = [base.__name__ for base in getattr(module, names[0]).__bases__]
                assert [name.rsplit(".", 1)[-1] for name in answer.split(", ")] == bases, one.question
            elif one.question.startswith("How many parameters"):
                assert int(answer) == len(inspect.signature(found(module, names[0])).parameters), one.question
            elif one.question.startswith("Is there a `yield`"):
                function = inspect.unwrap(found(module, names[1]))
                assert (answer == "Yes") == (
                    inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
                )
            elif one.question.startswith("What is the default") and answer != "Unanswerable":
                default = inspect.signature(found(module, names[1])).parameters[names[0]].default
                assert default == ast.literal_eval(answer), one.question
            elif answer == "Unanswerable":
                source = inspect.getsource(module)
                assert not any(re.search(rf"\b{part}\b", source) for part in names[1].split("."))
            else:
                continue
        except (ImportError, AttributeError, ValueError, TypeError):
            continue  # of another system, a decorated function, a default that is an expression
        checked += 1
    assert checked > 30


def found(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = inspect.getattr_static(module, part)
    return module.__func__ if isinstance(module, staticmethod | classmethod) else module


def test_data_are_written_and_read_again(
    tmp_path: Path, questions: list[Example], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stdlib.json"
    with pytest.raises(SystemExit) as ended:
        run(["supervise", "data", str(path), "-n", "20", "--seed", "7", "--json"])
    assert ended.value.code == 0 and json.loads(capsys.readouterr().out)["questions"] == 20
    assert STDLIB.examples(path, 0, 1) == questions[:20]
    with pytest.raises(ConfigError, match="give 1 or more"):
        made(7, 0)
