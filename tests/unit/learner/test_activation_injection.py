"""Injection against its formula: at the places and nowhere else, whatever the padding, the cache and the passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.activations import FAMILIES, SIZE, WORDS, model, tokenizer
from tests.support.attached import THIRD_PARTY

from oven_learner.activations.blocks import blocks
from oven_learner.activations.injection import ActivationInjection, injected, unwatched
from oven_learner.activations.placeholders import oracle_prompt

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
PLACEHOLDER = WORDS.index(" ?")


def vectors(*counts: int) -> list[Any]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(count, SIZE, generator=generator) * 5 for count in counts]


def prompts(side: str = "left") -> Any:
    """Three rows, of which two ask with a ` ?` of their own."""
    asked = [oracle_prompt(2, 2, "is it ? ?"), oracle_prompt(2, 1, "why"), oracle_prompt(2, 3, "Layer: 2\n ? so")]
    return tokenizer()(asked, padding=True, padding_side=side, return_tensors="pt", return_token_type_ids=False)


def outputs(of: Any, block: int, run: Any) -> list[torch.Tensor]:
    """What the block put out in each pass, as the next block is given it."""
    seen: list[torch.Tensor] = []
    hook = blocks(of)[block + 1].register_forward_pre_hook(
        lambda _m, args, kwargs: seen.append((args[0] if args else kwargs["hidden_states"]).detach().clone()),
        with_kwargs=True,
    )
    try:
        run()
    finally:
        hook.remove()
    return seen


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_places_get_the_formula_and_no_other_position_moves(family: str, side: str) -> None:
    policy, batch, wanted = model(family).eval(), prompts(side), vectors(2, 1, 3)
    [plain] = outputs(policy, 1, lambda: policy(**batch))
    injection = ActivationInjection(policy, tokenizer())
    with injection.rows(wanted):
        [changed] = outputs(policy, 1, lambda: policy(**batch))
    moved = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    for row, of_row in enumerate(wanted):
        places = (batch["input_ids"][row] == PLACEHOLDER).nonzero().flatten()[: len(of_row)]
        moved[row, places] = True
        h = plain[row, places]
        expected = h + h.norm(dim=1, keepdim=True) * of_row / of_row.norm(dim=1, keepdim=True)
        assert torch.allclose(changed[row, places], expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(changed[~moved], plain[~moved]) and not torch.allclose(changed[moved], plain[moved])


def test_the_formula_by_hand() -> None:
    hidden, vector = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])
    assert torch.equal(injected(hidden, vector), torch.tensor([[3.0, 9.0]]))
    assert injected(hidden.bfloat16(), vector).dtype == torch.bfloat16


@pytest.mark.parametrize("cache", [True, False])
def test_generation_has_the_vectors_with_a_cache_and_without_one(cache: bool) -> None:
    """Greedy, two sequences a prompt by beams: the text is the one of whole passes."""
    policy, batch, wanted = model().eval(), prompts(), vectors(2, 1, 3)
    injection = ActivationInjection(policy, tokenizer())
    with injection.rows(wanted), torch.no_grad():
        done = policy.generate(
            **batch, max_new_tokens=6, min_new_tokens=6, do_sample=True, top_k=0, num_return_sequences=2,
            use_cache=cache, output_logits=True, return_dict_in_generate=True, bad_words_ids=None,
        )  # fmt: skip
        whole = policy(done.sequences, attention_mask=(done.sequences != 0).long()).logits
    start = batch["input_ids"].shape[1] - 1
    assert torch.allclose(torch.stack(done.logits, 1), whole[:, start:-1], atol=1e-5)
    with unwatched(), torch.no_grad():
        without = policy(done.sequences, attention_mask=(done.sequences != 0).long()).logits
    assert not torch.allclose(whole[:, start:-1], without[:, start:-1], atol=0.01)
