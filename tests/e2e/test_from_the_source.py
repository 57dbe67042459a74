"""The calls of docs/from-the-source.md, as they stand there: a small local model, a real stack, judges over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from diffusers import DDIMScheduler
from tests.e2e.conftest import Oven
from tests.support.judge_endpoint import Endpoint
from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM, set_seed

from oven_core.protocol.messages import Receipt
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.policies import DiffusionPolicy, TemporalUNet
from oven_runs.home.run_folder import Home
from oven_runs.log.replay import replay

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"your-model": 32, "teachers/small": 32, "teachers/big": 64, "teachers/bigger": 96}
SMALLER = (
    ("group_size=8", "group_size=4"),
    ("total_steps=5000", "total_steps=5000, max_completion_length=8"),
    ("    await training\n", "    await asyncio.to_thread(baked.stop)\n    await training\n"),
    ("total_steps=500,", "total_steps=4,"),
    ("steps=8,", "steps=3,"),
)
"""What is another in the test: sizes, and that it stops after the swaps. Beside these the judges' addresses."""


class Lengths(Endpoint):
    """A judge that tells the answers of an untrained model apart."""

    def _worth(self, text: str) -> int:
        return len(text.encode()) % 11


def models(folder: Path) -> None:
    for number, (name, width) in enumerate(FOLDERS.items()):
        set_seed(number)
        sizes: dict[str, Any] = {
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
        tokens: dict[str, Any] = {"vocab_size": 259, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
        LlamaForCausalLM(LlamaConfig(max_position_embeddings=128, **sizes, **tokens)).save_pretrained(folder / name)
        ByT5Tokenizer(extra_ids=0).save_pretrained(folder / name)
    scheduler: Any = DDIMScheduler(num_train_timesteps=100, clip_sample=False)
    network = TemporalUNet(384, 32, 72)  # of all-MiniLM-L6-v2's vectors
    DiffusionPolicy(network, scheduler, frames=32, dims=72, steps=3).save(folder / "teachers" / "careful")


def script(url: str) -> str:
    """The blocks of the page one after another."""
    text = (ROOT / "docs" / "from-the-source.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    for there, here in SMALLER:
        assert there in code
        code = code.replace(there, here)
    for provider, address in (("claude", url), ("deepseek", f"{url}/deepseek/v1")):
        asks = f'"provider": "{provider}",'
        assert asks in code
        code = code.replace(asks, f'{asks} "base_url": "{address}",')
        code = code.replace(f'provider="{provider}",', f'provider="{provider}", base_url="{address}",')
    return code


def started(folder: Path) -> str:
    return str(json.loads((folder / "log.jsonl").read_text().partition("\n")[0])["time"])


async def test_its_calls_train_a_model_and_swap_judges_and_teachers(oven: Oven, tmp_path: Path) -> None:
    models(tmp_path)
    before = set((oven.home / "runs").glob("*"))
    async with Lengths().running() as endpoint:
        (tmp_path / "calls.py").write_text(script(endpoint.url))
        parent_env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")}
        process = oven.popen(
            [sys.executable, "calls.py"],
            cwd=tmp_path,
            env=parent_env | {"OVEN_HOME": str(oven.home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        output, _ = await asyncio.to_thread(process.communicate, timeout=250)
    assert process.returncode == 0, output
    assert "Scoring: A function that fails its tests scores 0." in output
    text, motion = sorted((path for path in (oven.home / "runs").iterdir() if path not in before), key=started)
    assert (
        Home(oven.home).find(motion.name).status() == "completed" and replay(oven.events(motion.name), motion.name).same
    )
    events = oven.events(text.name)
    bodies = [event.body for event in events]
    calls = [
        (body.action, body.actuator, body.judge.identity.partition("@")[0] if body.judge else str(body.value))
        for body in bodies
        if isinstance(body, OperatorCommand)
    ]
    haiku, reasoner = "claude/claude-haiku-4-5", "deepseek/deepseek-reasoner"
    critic, adversary, style = "committee.critic", "committee.adversary", "committee.style"
    host = endpoint.url.removeprefix("http://")
    chat = f"deepseek/deepseek-chat@{host}/deepseek/v1+logprobs=20"
    assert calls == [
        ("offer", critic, haiku),
        ("set", critic, f"{haiku}@{host}"),
        ("offer", adversary, "deepseek/deepseek-chat"),
        ("set", adversary, chat),
        *(("offer", judge, reasoner) for judge in (critic, adversary, style)),
        *(("set", judge, f"{reasoner}@{host}/deepseek/v1") for judge in (critic, adversary, style)),
        ("set", "teacher.active", "big"),
        ("set", "teacher.active", "bigger"),
        ("stop", "", "None"),
    ]
    receipts = {body.decision_id: body.status for body in bodies if isinstance(body, Receipt)}
    assert list(receipts.values()).count("applied") >= 7, "of each choice"
    asked_of = [request["model"] for request in endpoint.requests]
    assert set(asked_of) == {"claude-sonnet-5-5", "claude-haiku-4-5", "deepseek-chat", "deepseek-reasoner"}
    assert list(dict.fromkeys(asked_of))[-1] == "deepseek-reasoner", (
        "a call of the step before may still be answered late"
    )
    assert replay(events, text.name).same
