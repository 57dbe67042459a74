"""Injection against its formula: at the places and nowhere else, whatever the padding, the cache and the passes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.support.activations import FAMILIES, SIZE, WORDS, model, tokenizer
from tests.support.attached import THIRD_PARTY

from oven_core.errors import ConfigError
from oven_recipes.activations.injection import ActivationInjection, inject_vectors, unchecked_passes
from oven_recipes.activations.model_blocks import decoder_blocks
from oven_recipes.activations.placeholders import oracle_prompt

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
PLACEHOLDER = WORDS.index(" ?")


def vectors(*counts: int) -> list[Any]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(count, SIZE, generator=generator) * 5 for count in counts]


def prompts(side: str = "left") -> Any:
    """Three rows, of which two ask with a ` ?` of their own."""
    texts = [oracle_prompt(2, 2, "is it ? ?"), oracle_prompt(2, 1, "why"), oracle_prompt(2, 3, "Layer: 2\n ? so")]
    return tokenizer()(texts, padding=True, padding_side=side, return_tensors="pt", return_token_type_ids=False)


def outputs(module: Any, block: int, run: Any) -> list[torch.Tensor]:
    """What the block put out in each pass, as the next block is given it."""
    seen: list[torch.Tensor] = []
    hook = decoder_blocks(module)[block + 1].register_forward_pre_hook(
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
def test_only_placeholder_positions_are_changed_by_the_formula(family: str, side: str) -> None:
    policy, batch, wanted = model(family).eval(), prompts(side), vectors(2, 1, 3)
    injection = ActivationInjection(policy, tokenizer())
    with unchecked_passes():
        [plain] = outputs(policy, 1, lambda: policy(**batch))
    with injection.vectors(wanted):
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
    assert torch.equal(inject_vectors(hidden, vector), torch.tensor([[3.0, 9.0]]))
    assert inject_vectors(hidden.bfloat16(), vector).dtype == torch.bfloat16


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_generation_has_the_vectors_with_a_cache_and_without_one(family: str, cache: bool) -> None:
    """Two sequences a prompt, and each token's distribution is that of a whole pass."""
    policy, batch, wanted = model(family).eval(), prompts(), vectors(2, 1, 3)
    injection = ActivationInjection(policy, tokenizer())
    with injection.vectors(wanted), torch.no_grad():
        done = policy.generate(
            **batch, max_new_tokens=6, min_new_tokens=6, do_sample=True, top_k=0, num_return_sequences=2,
            use_cache=cache, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        mask = torch.cat([batch["attention_mask"].repeat_interleave(2, dim=0), torch.ones(6, 6, dtype=torch.long)], 1)
        whole = policy(done.sequences, attention_mask=mask).logits
    start = batch["input_ids"].shape[1] - 1
    assert torch.allclose(torch.stack(done.logits, 1), whole[:, start:-1], atol=1e-4)
    with unchecked_passes(), torch.no_grad():
        without = policy(done.sequences, attention_mask=mask).logits
    assert not torch.allclose(whole[:, start:-1], without[:, start:-1], atol=0.01)


def test_the_gradient_reaches_what_is_below_the_block() -> None:
    """The formula is differentiated as it stands."""
    hidden = torch.randn(3, SIZE, dtype=torch.float64, requires_grad=True)
    vector = torch.randn(3, SIZE, dtype=torch.float64)

    def formula(h: torch.Tensor) -> torch.Tensor:
        moved: torch.Tensor = h + h.norm(dim=1, keepdim=True) * vector / vector.norm(dim=1, keepdim=True)
        return moved

    [wanted] = torch.autograd.grad(formula(hidden).square().sum(), hidden)
    single = hidden.detach().float().requires_grad_()
    [gradient] = torch.autograd.grad(inject_vectors(single, vector.float()).square().sum(), single)
    assert torch.allclose(gradient.double(), wanted, rtol=1e-5, atol=1e-5)


def test_a_copy_of_the_model_has_the_same_activation_rows() -> None:
    policy, batch = model().eval(), prompts()
    injection = ActivationInjection(policy, tokenizer())
    copied = copy.deepcopy(policy)
    injection.attach(copied)
    with injection.vectors(vectors(2, 1, 3)), torch.no_grad():
        assert torch.equal(copied(**batch).logits, policy(**batch).logits)


def run(rows: Any, layers: Any = None, batch: Any = None, policy: Any = None) -> None:
    policy = policy or model().eval()
    injection = ActivationInjection(policy, tokenizer())
    with injection.vectors(rows, layers):
        policy(**(prompts() if batch is None else batch))


@pytest.mark.parametrize(
    ("rows", "layers", "message"),
    [
        (None, None, "no vectors were set for it"),
        ([], None, "vectors for 0"),
        (vectors(2, 1), None, "3 rows, but there are vectors for 2"),
        (vectors(2, 1, 3, 2), None, "3 rows, but there are vectors for 4"),
        (vectors(1, 2, 3), None, "row 0 has 2 placeholders after `Layer: n`, but 1 vectors"),
        ([*vectors(2, 1), None], None, "row 2 has 3 placeholders after `Layer: n`, but no vectors"),
        (vectors(2, 1, 3), [2, 1, 2], "row 1 says `Layer: 2`, but its vectors are from layer 1"),
    ],
)
def test_a_row_that_is_not_known_is_an_error(rows: Any, layers: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        run(rows, layers)


def test_a_text_without_placeholders_needs_no_rows() -> None:
    batch = tokenizer()(["is it ? ?"], return_tensors="pt", return_token_type_ids=False)
    run(None, batch=batch)
    run([None], batch=batch)
    with pytest.raises(RuntimeError, match="0 placeholders"):
        run([vectors(1)[0]], batch=batch)


def test_passes_whose_places_cannot_be_told_are_refused() -> None:
    policy = model().eval()
    with pytest.raises(RuntimeError, match="a forward pass without token ids"):
        run(vectors(2), batch={"inputs_embeds": torch.ones(1, 4, SIZE)}, policy=policy)
    with pytest.raises(ConfigError, match="packs several texts"):
        run(vectors(2, 1, 3), batch={**prompts(), "cu_seq_lens_q": torch.tensor([0, 3])})
    injection = ActivationInjection(plain_model := model(), tokenizer())
    with injection.vectors(vectors(2, 1, 3)), pytest.raises(RuntimeError, match="outside of its model's pass"):
        decoder_blocks(plain_model)[1](
            torch.ones(1, 2, SIZE), position_embeddings=(torch.ones(1, 2, 8), torch.ones(1, 2, 8))
        )


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (torch.zeros(2, SIZE), "is zero"),
        (torch.full((2, SIZE), float("inf")), "NaN or infinite"),
        (torch.ones(2, SIZE - 1), "hidden states of size 16"),
    ],
)
def test_an_invalid_direction_is_refused(vector: torch.Tensor, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run([vector, *vectors(1, 3)])
