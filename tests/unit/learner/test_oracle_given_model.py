"""Models and adapters that the user names: loaded as they are, or told of in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.activations import FAMILIES, model, stirred, tokenizer
from tests.support.attached import THIRD_PARTY

from oven_core.errors import ConfigError
from oven_recipes.oracle.user_model import fresh_adapter, load_adapter, load_model

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
IDS = torch.tensor([[5, 6, 7, 8]])


def saved(folder: Path, family: str = "llama", seed: int = 3) -> Any:
    """A small model's folder, as a user has one."""
    made = model(family, seed).eval()
    made.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return made


def adapter_of(folder: Path, base: Any, name: str) -> Any:
    policy = stirred(fresh_adapter(base, 4))
    policy.save_pretrained(folder)
    described(folder, base_model_name_or_path=name)
    return policy.eval()


def described(folder: Path, **changes: Any) -> None:
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_and_its_adapter_answer_as_they_were_saved(tmp_path: Path, family: str) -> None:
    made = saved(tmp_path / "model", family)
    plain = made(IDS).logits.detach().clone()
    oracle = adapter_of(tmp_path / "adapter", made, str(tmp_path / "model"))
    loaded: Any
    loaded, words = load_model(str(tmp_path / "model"), "float32")
    assert torch.equal(loaded.eval()(IDS).logits, plain)
    assert words.padding_side == "left" and words.pad_token is not None
    policy = load_adapter(loaded, str(tmp_path / "model"), str(tmp_path / "adapter")).eval()
    assert torch.allclose(policy(IDS).logits, oracle(IDS).logits, atol=1e-6)
    assert not torch.allclose(policy(IDS).logits, plain)
    assert any(weight.requires_grad for weight in policy.parameters())


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    adapter_of(tmp_path / "other", model("gpt2"), "owner/other")
    adapter_of(tmp_path / "narrow", model("llama"), "owner/narrow")
    described(tmp_path / "narrow", r=8)
    for name, words in (("other", "does not fit|of another model"), ("narrow", "owner/narrow")):
        with pytest.raises(ConfigError, match=words) as refusal:
            load_adapter(model("llama"), str(tmp_path / "model"), str(tmp_path / name))
        assert f"owner/{name}" in str(refusal.value) and "--model" in str(refusal.value)
    adapter_of(tmp_path / "named", model("llama"), "owner/named")
    with pytest.raises(ConfigError, match="does not belong to owner/mine; it was trained for owner/named"):
        load_adapter(model("llama"), "owner/mine", str(tmp_path / "named"))


@pytest.mark.parametrize("torn", ["model", "adapter"])
def test_truncated_weights_are_refused(tmp_path: Path, torn: str) -> None:
    made = saved(tmp_path / "model")
    adapter_of(tmp_path / "adapter", made, str(tmp_path / "model"))
    file = next((tmp_path / torn).glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=f"cannot load {torn} "):
        load_adapter(load_model(str(tmp_path / "model"), "auto")[0], "m", str(tmp_path / "adapter"))


def test_a_hub_id_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="hf download owner/absent"):
        load_model("owner/absent", "auto")
    with pytest.raises(ConfigError, match="hf download owner/adapter"):
        load_adapter(model("llama"), "owner/absent", "owner/adapter")
