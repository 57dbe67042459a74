"""`train.quantisation`: what is rounded and how, and that nothing else is touched."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY, equal, llama, tokens, trainer, weights
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from oven_learner.actuators import Actuators
from oven_learner.hf.attach import attach
from oven_learner.hf.knobs import quantisation
from oven_learner.hf.knobs.quantisation import BITS, GROUP_SIZE, FakeQuantisation, fake_quantise
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


@given(
    st.integers(0, 2**31),
    st.sampled_from([8, 4]),
    st.sampled_from([GROUP_SIZE, 2 * GROUP_SIZE, 20]),
    st.floats(1e-6, 1e6),
)
def test_a_weight_is_the_nearest_level_and_its_gradient_passes(seed: int, bits: int, width: int, size: float) -> None:
    weight = size * torch.randn(6, width, generator=torch.Generator().manual_seed(seed))
    weight = weight.requires_grad_()
    levels = fake_quantise(weight, bits)
    upstream = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed + 1))
    (gradient,) = torch.autograd.grad(levels, weight, upstream)
    assert torch.equal(gradient, upstream), "straight through, for the largest as well"
    group = GROUP_SIZE if bits == 4 and width % GROUP_SIZE == 0 else width
    rows, rounded = (tensor.detach().double().reshape(-1, group) for tensor in (weight, levels))
    scale = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert bool(((rounded - rows).abs() <= scale * (0.5 + 1e-4)).all())
    assert all(len(row.unique()) <= 2**bits - 1 for row in rounded)
    again = fake_quantise(levels.detach(), bits)
    assert torch.allclose(again, levels, rtol=1e-5, atol=0), "a rounded weight stays"


def test_zeros_stay_and_nan_stays_nan() -> None:
    weight = torch.ones(4, GROUP_SIZE)
    weight[1], weight[2, 3], weight[3, 4] = 0.0, float("nan"), float("inf")
    for bits in BITS.values():
        levels = fake_quantise(weight, bits)
        assert torch.equal(levels[:2], weight[:2]) and not bool(levels[2:].isfinite().any())
    assert fake_quantise(torch.ones(2, 4, dtype=torch.bfloat16), 8).dtype is torch.bfloat16


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16))


@pytest.mark.parametrize("made", [llama, gpt2])
def test_switching_quantisation_off_leaves_no_trace(made: Any) -> None:
    model = made()
    before = copy.deepcopy(model)
    names, held = list(model.state_dict()), [*model.parameters()]
    rows = tokens(2)[0]["input_ids"][None]
    model.eval(), before.eval()
    knob = FakeQuantisation(model)
    assert len(knob.layers) == (7 if made is llama else 4), "all but the output layer"
    for choice, bits in BITS.items():
        knob.write(choice)
        assert (knob.read(), knob.bits) == (choice, bits) == (FakeQuantisation(model).read(), bits)
        assert list(model.state_dict()) == names and all(a is b for a, b in zip(model.parameters(), held, strict=True))
        explicit = copy.deepcopy(before)
        with torch.no_grad():
            for layer in FakeQuantisation(explicit).layers:
                across = type(layer).__name__ == "Conv1D"
                rounded = fake_quantise(layer.weight.T if across else layer.weight, bits)
                layer.weight.copy_(rounded.T if across else rounded)
            actual, wanted = (variant(input_ids=rows).logits for variant in (model, explicit))
            assert torch.allclose(actual, wanted, atol=1e-6) and not torch.allclose(
                actual, before(input_ids=rows).logits
            )
            copied = copy.deepcopy(model)
            copied.load_state_dict(explicit.state_dict())
            assert torch.allclose(copied(input_ids=rows).logits, wanted, atol=1e-6), "a copy rounds its own weights"
    knob.write("none")
    assert (knob.read(), knob.bits) == ("none", 32)
    assert [type(module) for module in model.modules()] == [type(module) for module in before.modules()]
    assert torch.equal(model(input_ids=rows).logits, before(input_ids=rows).logits)


def test_what_is_saved_while_it_is_on_is_a_plain_model(tmp_path: Path) -> None:
    job = trainer(tmp_path, model=llama(), data=tokens(), save_strategy="steps", save_steps=3, max_steps=6)
    knobs = Actuators()
    quantisation.register_knob(knobs, FakeQuantisation(job.model))  # type: ignore[arg-type]
    line = FakeLink({2: ("train.quantisation", "int8")})
    attach(job, link=line, actuators=knobs)
    job.train()
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    loaded: Any = AutoModelForCausalLM
    plain_model, loading_info = loaded.from_pretrained(tmp_path / "checkpoint-6", output_loading_info=True)
    assert (
        isinstance(plain_model, LlamaForCausalLM)
        and not loading_info["unexpected_keys"]
        and not loading_info["missing_keys"]
    )
    assert equal([*plain_model.state_dict().values()], weights(job)), "the full weights"
    assert {type(module).__name__ for module in plain_model.modules()}.isdisjoint({"QuantisedLinear"})
