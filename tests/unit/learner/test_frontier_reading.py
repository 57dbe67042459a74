"""What is read of a policy against a frontier model's answers: exact where it can be, and a lower bound elsewhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.random_states import same_state
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from oven_learner import random_state
from oven_learner.frontier_divergence import SYMBOLS, FirstBytes, PolicyMeter, known_mass, min_divergence, token_bytes
from oven_runs.home.probe_set import Alternative, Probe, ProbeSet, Token

TEXTS = ("the cat sat on the mat", "naïve café — ☕ and the rest", "then the cat, the café")


def bpe(size: int) -> Any:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        TEXTS, trainers.BpeTrainer(
            vocab_size=size, special_tokens=["<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<end>")  # type: ignore[no-untyped-call]


def model(words: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=128,
        )
    )  # fmt: skip


@torch.no_grad()
def answered(words: Any, frontier: Any, prompt: str, completion: str, top: int) -> Probe:
    """The completion as an API returns one: each token with the likeliest alternatives."""
    first, ids = list(words(prompt)["input_ids"]), list(words(completion)["input_ids"])
    logits = frontier(torch.tensor([first + ids])).logits[0, len(first) - 1 : -1]
    best = logits.log_softmax(-1).topk(top)
    spelt = words.convert_ids_to_tokens(ids)

    def token_byte_lengths(token: int) -> bytes:
        return b"" if token == words.eos_token_id else token_bytes(words, words.convert_ids_to_tokens(token))

    return Probe(
        prompt=prompt,
        completion=completion,
        tokens=tuple(
            Token(
                hex=token_bytes(words, piece).hex(),
                top=tuple(
                    Alternative(hex=token_byte_lengths(int(token)).hex(), logprob=min(0.0, float(value)))
                    for token, value in zip(best.indices[index], best.values[index], strict=True)
                ),
            )
            for index, piece in enumerate(spelt)
        ),
    )


def probe_set(*probes: Probe) -> ProbeSet:
    return ProbeSet(provider="openai", model="frontier", probes=probes)


@given(
    st.lists(st.floats(1e-6, 1), min_size=6, max_size=6),
    st.lists(st.floats(1e-6, 1), min_size=6, max_size=6),
    st.integers(0, 5),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
)
def test_the_bound_is_below_the_divergence_for_any_tail(
    theirs: list[float], ours: list[float], count: int, tail: list[float]
) -> None:
    """A whole distribution of which the `kept` likeliest are known; and any other that agrees on those."""
    whole = torch.zeros(SYMBOLS, dtype=torch.float64)
    whole[:6] = torch.tensor(theirs, dtype=torch.float64) / sum(theirs)
    policy = torch.zeros(SYMBOLS, dtype=torch.float64)
    policy[:6] = torch.tensor(ours, dtype=torch.float64) / sum(ours)
    known = torch.zeros_like(whole)
    order = whole.argsort(descending=True)[:count]
    known[order] = whole[order]
    bound = float(min_divergence(known[None], policy[None])[0])

    def divergence(full: torch.Tensor) -> float:
        inside = full > 0
        return float((full[inside] * (full[inside] / policy[inside].clamp(min=1e-12)).log()).sum())

    assert -1e-9 <= bound <= divergence(whole) + 1e-9
    if sum(tail):
        completed = known.clone()
        completed[:6] += (1 - known.sum()) * torch.tensor(tail, dtype=torch.float64) / sum(tail)
        assert bound <= divergence(completed) + 1e-9
    if count == 0:
        assert bound == pytest.approx(0, abs=1e-9), "nothing is known, and nothing is claimed"


def test_the_whole_distribution_gives_the_divergence_itself() -> None:
    theirs, ours = (torch.randn(SYMBOLS, dtype=torch.float64).softmax(0) for _ in range(2))
    exact = float((theirs * (theirs / ours).log()).sum())
    assert float(min_divergence(theirs[None], ours[None])[0]) == pytest.approx(exact)


def test_bits_per_byte_and_kl_equal_a_direct_computation() -> None:
    """One tokenizer and every alternative: then the bound is the divergence of the next byte, token by token."""
    words = bpe(280)
    frontier, policy = model(words, 1), model(words, 2)
    probe = answered(words, frontier, TEXTS[0], TEXTS[1], len(words))
    reading = PolicyMeter(probe_set(probe), policy, words)
    reading_result = reading.read(policy)
    first, ids = list(words(TEXTS[0])["input_ids"]), list(words(TEXTS[1])["input_ids"])
    with torch.no_grad():
        rows = [model(torch.tensor([first + ids])).logits[0, len(first) - 1 : -1] for model in (policy, frontier)]
    nats = -rows[0].double().log_softmax(-1).gather(-1, torch.tensor(ids)[:, None]).sum()
    assert reading_result.bits_per_byte == pytest.approx(float(nats) / math.log(2) / len(TEXTS[1].encode()), rel=1e-5)
    ours, theirs = (FirstBytes(words, len(words))(row) for row in rows)
    each = (theirs * (theirs / ours).log()).nan_to_num().sum(-1)
    whole = [
        index
        for index, text in enumerate(words.convert_ids_to_tokens(ids))
        if index == 0 or _at_character(words, ids[:index])
    ]
    assert reading_result.positions == len(whole)
    assert reading_result.kl == pytest.approx(float(each[whole].mean()), rel=1e-4)
    assert PolicyMeter(probe_set(probe), frontier, words).read(frontier).kl == pytest.approx(0, abs=1e-6)


def _at_character(words: Any, ids: list[int]) -> bool:
    return not words.decode(ids).endswith("�")


def test_with_other_tokens_only_shared_token_ends_count() -> None:
    theirs, ours = bpe(290), bpe(262)
    frontier, policy = model(theirs, 1), model(ours, 2)
    kls = []
    for top in (2, 20, len(theirs)):
        probes = probe_set(*(answered(theirs, frontier, TEXTS[0], text, top) for text in TEXTS))
        result = PolicyMeter(probes, policy, ours).read(policy)
        tokens = sum(len(theirs(text)["input_ids"]) for text in TEXTS)
        assert 0 < result.positions <= tokens
        kls.append(result.kl)
    assert kls[0] is not None and 0 <= kls[0] <= (kls[1] or 0) <= (kls[2] or 0)


def test_reading_changes_no_state() -> None:
    words = bpe(270)
    policy = model(words, 2).train()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    state = random_state.capture()
    plain = PolicyMeter(probe_set(Probe(prompt="the", completion=" cat")), policy, words)
    first, second = plain.read(policy), plain.read(policy)
    assert first == second and first.kl is None and first.positions == 0
    assert policy.training and same_state(state, random_state.capture())
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert not any(parameter.grad is not None for parameter in policy.parameters())


def test_probability_mass_beyond_one_is_normalised() -> None:
    assert float(known_mass([(b"a", 0.9), (b"ab", 0.6), (b"", 0.5)]).sum()) == pytest.approx(1)
