"""The experiment with a graph's token scores: its pieces, its verdict, and a run of a few steps."""

from __future__ import annotations

import json
import runpy
from collections import Counter
from pathlib import Path

import pytest
import torch

from oven_bench.statistics import Word
from oven_bench.training import token_prior as bench
from oven_bench.training.graph_scores import scores_of_folder, scores_of_sources
from oven_core.errors import ConfigError
from oven_core.protocol.token_scores import LIMIT, decode, vocabulary_sha
from oven_kg.arrays.builder import Builder
from oven_kg.arrays.folder import write
from oven_kg.token_prior.python_triples import triples_of

SOURCE = """
import os
from json import loads

class Oven(Base):
    def bake(self):
        try:
            return loads(os.read(3))
        except (ValueError, KeyError):
            raise Burnt("black") from None
"""


def test_a_program_is_a_graph(tmp_path: Path) -> None:
    path = tmp_path / "kitchen.py"
    path.write_text(SOURCE)
    assert set(triples_of(path)) == {
        ("kitchen", "REQUIRES", "os"),
        ("kitchen", "REQUIRES", "loads"),
        ("kitchen", "CONTAINS", "Oven"),
        ("Oven", "IS_A", "Base"),
        ("Oven", "CONTAINS", "bake"),
        ("bake", "REQUIRES", "loads"),
        ("bake", "REQUIRES", "read"),
        ("bake", "SOLVES", "ValueError"),
        ("bake", "SOLVES", "KeyError"),
        ("bake", "CAUSES", "Burnt"),
        ("bake", "REQUIRES", "Burnt"),
    }
    path.write_text("this is no program")
    assert list(triples_of(path)) == []


def test_its_prior_is_a_kilobyte_at_most_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "kitchen.py"
    path.write_text(SOURCE)
    prior = scores_of_sources([path], ["loads", " Oven", "q", "bake", "os"])
    assert len(prior.blob) <= LIMIT and len(prior.scores) == 4 and 2 not in prior.scores
    assert (prior.nodes, prior.edges) == (10, 11)


@pytest.mark.parametrize("arm", bench.ARMS)
def test_an_arm_changes_its_own_rows_and_no_other(arm: str) -> None:
    scores, counts = {3: 1.0, 5: 0.5}, Counter({7: 9, 8: 5, 3: 1})
    plain, model = bench.Model(bench.QUICK, 1), bench.Model(bench.QUICK, 1)
    bench.begin(model, arm, scores, counts, seed=1)
    before, after = plain.rows.data, model.rows.data
    changed = torch.nonzero(torch.ne(after, before).any(1)).flatten().tolist()
    grown = {row: float((after[row] / before[row]).mean()) for row in changed}
    if arm in ("baseline", "unigram"):
        assert grown == {}
    else:
        assert sorted(grown.values()) == pytest.approx([1.25, 1.5])
        assert (set(grown) == {3, 5}) == (arm == "kg") and (set(grown) == {7, 8}) == (arm == "frequency")
    assert bool(model.bias.any()) == (arm == "unigram")
    if arm == "unigram":
        assert int(model.bias.argmax()) == 7 and len(set(model.bias.tolist())) <= 16


def test_the_verdict_asks_for_every_control() -> None:
    helped: dict[str, Word] = dict.fromkeys(bench.ARMS, "HELPS")
    assert bench.verdict(helped, 5) == "HELPS" and bench.verdict(helped, 4) == "INCONCLUSIVE"
    for control in ("baseline", "shuffled", "frequency"):
        assert bench.verdict({**helped, control: "NO EFFECT"}, 5) == "NO EFFECT"
        assert bench.verdict({**helped, control: "INCONCLUSIVE"}, 5) == "INCONCLUSIVE"
    unsure: dict[str, Word] = dict.fromkeys(bench.ARMS, "INCONCLUSIVE")
    assert bench.verdict({**unsure, "frequency": "HARMS"}, 5) == "NO EFFECT", "frequency alone does surely more"
    assert bench.verdict({**helped, "unigram": "HARMS"}, 5) == "HELPS", "the unigram is no control of the graph"
    assert bench.verdict({**helped, "baseline": "HARMS"}, 5) == "HARMS"


def test_a_large_graphs_scores_are_those_of_the_service_and_shuffle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn from sources by the example, and imported as any graph is."""
    (tmp_path / "kitchen.py").write_text(SOURCE)
    example = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "code_graph.py"))
    example["main"]([str(tmp_path)])
    rows = [line.split(",") for line in capsys.readouterr().out.split()]
    assert rows[0] == ["source", "relation", "target"] and len(rows) == 12
    builder = Builder()
    sources, relations, targets = ([row[column] for row in rows[1:]] for column in range(3))
    builder.edges(sources, relations, targets)
    write(tmp_path / "graph", builder.finish())
    texts = ["loads", " Oven", "q", "bake", "os"]
    found = scores_of_folder(tmp_path / "graph", texts)
    assert (found.nodes, found.edges, len(found.graph)) == (10, 11, 64)
    assert set(found.scores) == {0, 1, 3, 4} and max(found.scores.values()) == 1
    shuffled = decode(found.shuffled(3), len(texts), vocabulary_sha(texts))
    assert sorted(shuffled.values()) == sorted(found.scores.values())
    assert any(
        decode(found.shuffled(seed), 5, vocabulary_sha(texts)).keys() != found.scores.keys() for seed in range(9)
    )
    with pytest.raises(ConfigError, match="nowhere"):
        scores_of_folder(tmp_path / "nowhere", texts)


def test_a_quick_run_that_is_continued(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--quick", "--json", "--results", str(tmp_path / "rows.jsonl")]
    assert bench.BENCH.run(options) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "INCONCLUSIVE" and set(found["bits_per_byte"]) == set(bench.ARMS)
    assert found["blob_bytes"] <= 1024 and found["tokens"] == 358 and found["graph_nodes"] > 100
    assert all(2 < bits < 6 for bits in found["bits_per_byte"].values()), "near the start: 10 bits a token"
    assert found["gain_of_kg_over"]["shuffled"]["low"] < found["gain_of_kg_over"]["shuffled"]["high"]
    monkeypatch.setattr(bench, "trained", None)  # nothing is run again
    assert bench.BENCH.run(options) == 0
    assert json.loads(capsys.readouterr().out) == found
    with pytest.raises(ConfigError, match="made with other size"):
        bench.BENCH.run([*options, "--steps", "5"])
