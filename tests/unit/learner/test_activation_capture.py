"""Capture against transformers' own hidden states, and the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.activations import FAMILIES, SIZE, lora, model, stirred, texts, tokenizer
from tests.support.attached import THIRD_PARTY

from oven_core.errors import ConfigError
from oven_recipes.activations.activation_store import ActivationStore, activation_key, layer_in_key
from oven_recipes.activations.capture import Activation, capture
from oven_recipes.activations.injection import ActivationInjection

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


@pytest.mark.parametrize("family", FAMILIES)
def test_block_k_puts_out_hidden_states_k_plus_1_with_the_adapter_off(family: str) -> None:
    from peft import get_peft_model

    ordered_texts = sorted(texts(6), key=lambda text: len(tokenizer()(text)["input_ids"]))
    batch = tokenizer()(
        ordered_texts, padding=True, padding_side="right", return_tensors="pt", return_token_type_ids=False
    )
    with torch.no_grad():
        states = model(family).eval()(**batch, output_hidden_states=True).hidden_states
    policy = stirred(get_peft_model(model(family), lora(fan_in_fan_out=family == "gpt2")))
    policy.add_adapter("ref", lora())
    trained = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
    ActivationInjection(policy, tokenizer())  # its hooks are on, and look away
    captured = capture(policy, tokenizer(), ordered_texts, [0, 1, 2], [1, 2, 3, 20, 20, 20])
    for number, (text, length) in enumerate(zip(ordered_texts, batch["attention_mask"].sum(1).tolist(), strict=True)):
        for layer in (0, 1, 2):
            activation = captured[3 * number + layer]
            assert (activation.text, activation.layer) == (text, layer)
            count = min([1, 2, 3, 20, 20, 20][number], length - 1)
            assert torch.equal(activation.vectors, states[layer + 1][number, length - count : length])
    assert policy.training and trained == [
        name for name, parameter in policy.named_parameters() if parameter.requires_grad
    ]
    with torch.no_grad():  # and the adapter is on again
        assert not torch.allclose(policy.eval()(**batch, output_hidden_states=True).hidden_states[2], states[2])


@pytest.mark.parametrize(
    ("prompts", "layers", "tokens", "message"),
    [
        (["cat"], [1], 3, "1 token"),
        ([""], [1], 3, "0 token"),
        (["cat dog"], [4], 3, "has blocks 0 to 3"),
        (["cat dog"], [-1], 3, "has blocks 0 to 3"),
        (["cat dog"], [1], 0, "1 to 20"),
        (["cat dog"], [1], 21, "1 to 20"),
        (["cat dog"], [1], [1, 2], "1 to 20"),
    ],
)
def test_what_cannot_be_captured_is_refused(prompts: list[str], layers: list[int], tokens: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        capture(model(), tokenizer(), prompts, layers, tokens)


def test_a_model_that_overflows_is_refused() -> None:
    policy = model()
    policy.model.embed_tokens.weight.data[:] = float("inf")
    with pytest.raises(ConfigError, match="NaN or infinite"):
        capture(policy, tokenizer(), ["cat dog"], [1])


def test_the_store_gives_back_what_was_put_in_and_writes_nothing_twice(tmp_path: Path) -> None:
    captured = capture(model(), tokenizer(), texts(5), [1, 2], 3)
    store = ActivationStore(tmp_path / "kept")
    keys = store.add("tiny", captured)
    assert store.add("tiny", captured) == keys and len(list(store.folder.iterdir())) == 1
    other_keys = store.add("another", captured[:1])
    again = ActivationStore(tmp_path / "kept")
    assert len(again) == len(set(keys)) + 1 and again.hidden_size == SIZE and other_keys[0] in again
    for key, activation in zip(keys, captured, strict=True):
        assert (
            key == activation_key("tiny", activation.text, activation.layer) and layer_in_key(key) == activation.layer
        )
        assert torch.equal(again.get(key), activation.vectors)
    everything = b"".join(path.read_bytes() for path in store.folder.iterdir())
    assert not any(activation.text.encode() in everything for activation in captured)  # a prompt is in no file


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    store = ActivationStore(tmp_path)
    [key] = store.add("tiny", [Activation("cat", 1, torch.ones(1, SIZE))])
    with pytest.raises(ConfigError, match="capture it with"):
        store.get("0.1")
    with pytest.raises(ConfigError, match="not the key of an activation"):
        layer_in_key("unchanged")
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    ActivationStore(tmp_path / "wide").add("wide", [Activation("cat", 1, torch.ones(1, 2 * SIZE))])
    (wide,) = (tmp_path / "wide").iterdir()
    for part in (whole[: len(whole) // 2], whole[:4], b"", b"{" * 100):
        path.write_bytes(part)
        with pytest.raises(ConfigError, match=r"not a complete file.*capture"):
            ActivationStore(tmp_path)
    path.write_bytes(whole)
    assert key in ActivationStore(tmp_path)
    (tmp_path / wide.name).write_bytes(wide.read_bytes())
    with pytest.raises(ConfigError, match=r"size 32.*16|size 16.*32"):
        ActivationStore(tmp_path)
