"""The nine benchmarks: template items, published layouts, and what is said of files that are wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.support import benchmark_files

from oven_core.errors import ConfigError
from oven_recipes.oracle.benchmark_items import ITEMS, items, published_items, template_items
from oven_recipes.oracle.benchmarks.benchmark import FALSE
from oven_recipes.oracle.benchmarks.nine_benchmarks import BENCHMARKS


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return benchmark_files.publish(tmp_path_factory.mktemp("benchmarks"))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_templates_hold_250_items_out_of_training_and_the_question_alone_says_nothing(name: str) -> None:
    drawn = template_items(BENCHMARKS[name])
    assert len({item.text for item in drawn}) == len(drawn) == ITEMS
    assert not {item.text for item in drawn} & {item.text for item in items(name, held_out=False)}
    asked = Counter((item.question, item.answer) for item in drawn)
    assert len(asked) == 2 * len(list(BENCHMARKS[name].questions(FALSE)))
    assert max(asked.values()) - min(asked.values()) <= 1
    assert {(item.text, item.question, item.answer) for item in drawn} <= {
        item[:3] for item in items(name, held_out=True)
    }


@pytest.mark.parametrize("name", BENCHMARKS)
def test_published_layouts_are_read(name: str, published: Path) -> None:
    drawn = published_items(BENCHMARKS[name], published / name, 24)
    assert len({item.text for item in drawn}) == 24
    assert Counter(item.answer for item in drawn) == {"yes": 12, "no": 12}
    assert all(str(published) in item.where and item.where[-1].isdigit() for item in drawn)
    assert drawn == published_items(BENCHMARKS[name], published / name, 24)


def test_a_rows_answer_is_its_labels(published: Path) -> None:
    def read(name: str) -> dict[str, frozenset[str]]:
        return {
            text.text: text.labels
            for path in sorted((published / name).rglob(benchmark_files.READ.get(name, "*.*")))
            for text in BENCHMARKS[name].read(path)
        }

    assert read("geometry_of_truth")['The number 4, called "4", is even.'] == {"yes"}
    assert read("sst2")['a "quoted film number 3'] == {"positive"}
    assert read("ner")['Number1 Paris NATO "'] == {"a place", "an organization"}
    assert read("ag_news")['Title 2. Report 2, "quoted", at length.'] == {"business"}
    assert len(read("snli")) == len(read("md_gender")) == 60  # neutral ones are passed over
    truths = read("relations")
    assert truths["The capital of Country 7 is City 7."] == {"yes"} and len(truths) == 120


BAD = {
    "unknown label": ("geometry_of_truth", "a.csv", "statement,label\nx,1\ny,2\n", r"line 3: unknown label '2'"),
    "missing column": ("ag_news", "a.csv", "Class,Title,Description\n1,x,y\n", "line 1: there is no column"),
    "no column at all": ("ner", "a.csv", "", r"line 1: there is no column 'Sentence #' among none"),
    "unclosed quote": ("ag_news", "a.csv", 'Class Index,Title,Description\n1,x,"y\n', "line 2: .*torn"),
    "short row": ("singular_plural", "a.csv", "sentence,n_subjects\nx,single\ny\n", "line 3: 1 fields"),
    "word before a sentence": ("ner", "a.csv", "Sentence #,Word,POS,Tag\n,x,NN,O\n", "line 2: a word before"),
    "torn JSON": ("tense", "a.json", '[{"sentence": "x",\n "la', "line 2: not JSON .*torn"),
    "no list": ("tense", "a.json", "{}", "a list of objects is needed, and this is a dict"),
    "torn JSONL": ("snli", "a.jsonl", '{"gold_label": "-", "sentence1": "", "sentence2": ""}\n{"go', "line 2: not"),
    "missing key": ("md_gender", "a.jsonl", '{"text": "x"}\n', "line 1: there is no 'gender'"),
    "no object": ("md_gender", "a.jsonl", "\n[]\n", "line 2: an object is needed"),
    "no subject's place": ("relations", "a.json", '{"prompt_templates": ["x"], "samples": []}', "place of the subject"),
    "no samples": ("relations", "a.json", "[]", "no prompt_templates and samples"),
    "tagged otherwise": ("ner", "a.csv", "Sentence #,Word,POS,Tag\nSentence: 1,x,NN,PERSON\n", "line 2: unknown label"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_told_with_its_line_and_a_remedy(what: str, tmp_path: Path) -> None:
    name, file, text, message = BAD[what]
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        published_items(BENCHMARKS[name], tmp_path, 2)
    assert file in str(raised.value)
