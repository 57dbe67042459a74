"""Pretraining on somebody's own text, with the real stack: started by its flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.conftest import Oven

from oven_controller.log.replay import replay
from oven_controller.protocol.messages import Observation, Receipt, RunEnded, RunStarted

pytestmark = pytest.mark.e2e

SIZES = {"vocabulary": 300, "context": 16, "batch": 4, "eval_every": 5, "eval_rows": 8, "lr_warmup_steps": 0}


def test_a_folder_of_text_and_a_configuration_are_enough(oven: Oven, tmp_path: Path) -> None:
    for name in ("one/a", "one/b", "two/a", "two/b"):
        file = tmp_path / "texts" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{name} has words, and more words, and {name} again. " * 40)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}))
    sizes = [part for name, size in SIZES.items() for part in ("--set", f"recipe_options.{name}={size}")]
    command = ["up", "--headless", "--recipe", "pretrain", "--start", "tuned", "--run", "own-text", *sizes]
    code, said = oven(*command, "--corpus", str(tmp_path / "nowhere"), "--steps", "10")
    assert code == 2 and f"{tmp_path / 'nowhere'} is not a folder; give one with text files" in said
    code, said = oven(*command, "--corpus", str(tmp_path / "texts"), "--model", str(config), "--steps", "10")
    assert code == 0, said
    events = oven.events("own-text")
    started = next(e.body for e in events if isinstance(e.body, RunStarted))
    assert started.recipe == "pretrain"
    assert {"optimizer.weight_decay", "data.mixture", "data.skip"} <= {spec.name for spec in started.actuators}
    ended = next(e.body for e in events if isinstance(e.body, RunEnded))
    assert (ended.reason, ended.step) == ("completed", 10)
    assert set(ended.metrics) == {f"eval/bits_per_byte{of}" for of in ("", "/one", "/two")}
    measured = [e.body for e in events if isinstance(e.body, Observation) and "eval/bits_per_byte" in e.body.metrics]
    assert [seen.step for seen in measured] == [0, 5, 10]
    assert all(e.body.status in ("applied", "noop") for e in events if isinstance(e.body, Receipt))
    assert replay(events, "own-text").same
