"""The nine benchmarks: template items, published layouts, and what is said of files that are wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.support import benchmark_files

from oven_recipes.oracle.benchmark_items import DEFAULT_ITEMS, items, published_items, template_items
from oven_recipes.oracle.benchmarks import BENCHMARKS, FALSE


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return benchmark_files.publish(tmp_path_factory.mktemp("benchmarks"))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_templates_hold_250_items_out_of_training_and_the_question_alone_says_nothing(name: str) -> None:
    drawn = template_items(BENCHMARKS[name])
    assert len({item.text for item in drawn}) == len(drawn) == DEFAULT_ITEMS
    assert not {item.text for item in drawn} & {item.text for item in items(name, held_out=False)}
    counts = Counter((item.question, item.answer) for item in drawn)
    assert len(counts) == 2 * len(list(BENCHMARKS[name].questions(FALSE)))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert {(item.text, item.question, item.answer) for item in drawn} <= {
        item[:3] for item in items(name, held_out=True)
    }


@pytest.mark.parametrize("name", BENCHMARKS)
def test_published_layouts_are_read(name: str, published: Path) -> None:
    drawn = published_items(BENCHMARKS[name], published / name, 24)
    assert len({item.text for item in drawn}) == 24
    assert Counter(item.answer for item in drawn) == {"yes": 12, "no": 12}
    assert all(str(published) in item.location and item.location[-1].isdigit() for item in drawn)
    assert drawn == published_items(BENCHMARKS[name], published / name, 24)
