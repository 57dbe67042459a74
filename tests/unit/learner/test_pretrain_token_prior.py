"""The pretraining recipe's token prior: where scores are from, what they do, and what is refused."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY
from tests.support.command_line import call
from tests.unit.learner.test_pretrain import TINY, Home, text, write

from oven_core.errors import BusError, ConfigError
from oven_core.protocol.graph_requests import TokenPrior
from oven_core.protocol.token_prior_format import encode, vocabulary_sha
from oven_learner.testing import FakeLink
from oven_recipes.pretrain import corpus, token_prior, tokens
from oven_recipes.pretrain.token_prior import SCORES_FILE, STRENGTH

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    files = {f"{part}__{n}": text(n + 100 * seed) for seed, part in enumerate(("one", "two")) for n in range(8)}
    return Home(write(tmp_path_factory.mktemp("corpus"), **files), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def words(home: Home) -> tokens.Tokens:
    return tokens.tokenize(corpus.read(home.corpus, 0.05, 32_000_000), TINY["vocabulary"], home.cache)


def embedding(job: Any) -> torch.Tensor:
    rows: torch.Tensor = job.trainer.model.get_input_embeddings().weight.detach()
    return rows


def weighted(job: Any) -> dict[int, float]:
    """What `channel.kg` weights by."""
    (scores,) = [channel.scores for channel in job.trainer.channels if channel.name == "kg"]
    return dict(scores)


def test_without_a_prior_nothing_is_scaled_and_there_is_no_channel(tmp_path: Path, home: Home) -> None:
    assert [channel.name for channel in home.job(tmp_path).trainer.channels] == ["mtp"]
    assert not (tmp_path / SCORES_FILE).exists()


def test_unigram_has_the_frequent_tokens_and_scales_their_rows(
    tmp_path: Path, home: Home, words: tokens.Tokens
) -> None:
    plain, scaled = home.job(tmp_path), home.job(tmp_path, token_prior="unigram")
    counts, scores = words.counts, weighted(scaled)
    assert int(counts.sum()) == sum(len(stream) for stream in words.train.values())
    assert set(scores) == {int(token) for token in counts.nonzero()}, "all: the corpus has fewer than 358"
    assert max(scores.values()) == 1 == scores[int(counts.argmax())] and min(scores.values()) == 0
    low, high = (math.log(int(counts[counts > 0].min())), math.log(int(counts.max())))
    for token, score in scores.items():
        assert score == pytest.approx((math.log(int(counts[token])) - low) / (high - low), abs=1 / 30 + 1e-6)
    factors = torch.tensor([1 + STRENGTH * scores.get(token, 0.0) for token in range(len(counts))])
    assert torch.allclose(embedding(scaled), embedding(plain) * factors.unsqueeze(1), rtol=1e-6)
    others = [name for name, _ in plain.trainer.model.named_parameters() if "embed" not in name]
    parameters = [dict(job.trainer.model.named_parameters()) for job in (plain, scaled)]
    assert all(torch.equal(parameters[0][name], parameters[1][name]) for name in others), "the same draws"


def test_a_file_that_the_command_wrote_is_read_for_the_vocabulary_that_is_kept(
    tmp_path: Path, home: Home, words: tokens.Tokens
) -> None:

    file = tmp_path / "prior.bin"
    assert call("kg token-prior", [str(words.vocabulary_file), "--method", "kg", "-k", "20", "--to", str(file)]) == 0
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    begins: dict[str, Any] = {"kg_weight": 0.1, "mtp_weight": 0.1, "quantisation": "int8", "model": tmp_path}
    job = home.job(tmp_path, token_prior=str(file), max_steps=2, **begins)
    scores, line = weighted(job), FakeLink()
    assert len(scores) == 20 and max(scores.values()) == 1 and min(scores.values()) == pytest.approx(1 / 20)
    job.attach(link=line)
    job.trainer.train()
    seen = line.observed()[-1].metrics
    assert {"channel/kg", "channel/mtp"} <= seen.keys() and seen["eval/weight_bits"] == 8, "GPT-2's layers, too"


def blob(size: int, sha: str, **scores: float) -> bytes:
    return encode({int(token[1:]): score for token, score in scores.items()}, size, sha)


def test_the_stacks_graph_is_asked_once_in_a_run(
    tmp_path: Path, home: Home, words: tokens.Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OVEN_URL", "OVEN_RUN", "OVEN_CREDS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        ConfigError, match=r"token_prior = kg needs the prior service of a stack, which was not found: start"
    ):
        home.job(tmp_path, token_prior="kg")
    monkeypatch.setenv("OVEN_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("OVEN_RUN", "r")
    requests: list[Any] = []
    served = blob(len(words.token_texts), vocabulary_sha(words.token_texts), t40=1.0, t50=0.5)

    def ask(connection: Any, vocabulary: Any, **how: Any) -> TokenPrior:
        requests.append((connection.run, list(vocabulary), how))
        if len(requests) == 1:
            raise BusError("no one answers on oven.kg.token_prior")
        return TokenPrior(
            graph="ab" * 32,
            method="kg",
            tokens=2,
            bytes=len(served),
            blob=base64.b64encode(served).decode(),
            ablation="-",
        )

    monkeypatch.setattr(token_prior, "request_token_prior", ask)
    with pytest.raises(ConfigError, match=r"the prior service did not answer \(no one answers .*`unigram` or `none`"):
        home.job(tmp_path, token_prior="kg")
    first, again = (weighted(home.job(tmp_path, token_prior="kg")) for _ in range(2))
    assert first == again == {40: 1.0, 50: 0.5} and (tmp_path / SCORES_FILE).read_bytes() == served
    assert len(requests) == 2 and requests[1] == ("r", words.token_texts, {"k": 358})
