"""Pretraining on somebody's own text, with the real stack, started by its flags. Its learner is killed, and the run
goes on from the checkpoint that was there, not from its beginning."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import psutil
import pytest
from tests.e2e.conftest import LIMIT_S, Oven

from oven_core.protocol.messages import Observation, Receipt, RunEnded, RunStarted
from oven_learner.rollback import checkpoint_record
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.replay import replay

pytestmark = pytest.mark.e2e

EVAL_EVERY = 5
SIZES = {"vocabulary": 300, "context": 16, "batch": 4, "eval_every": EVAL_EVERY, "eval_rows": 8, "lr_warmup_steps": 0}


async def test_a_folder_of_text_is_enough_and_a_killed_learner_resumes_from_disk(oven: Oven, tmp_path: Path) -> None:
    for name in ("one/a", "one/b", "two/a", "two/b"):
        file = tmp_path / "texts" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{name} has words, and more words, and {name} again. " * 40)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}))
    sizes = [part for name, size in SIZES.items() for part in ("--set", f"recipe_options.{name}={size}")]
    command = ["up", "--headless", "--recipe", "pretrain", "--start", "tuned", "--run", "killed", *sizes]
    code, output = oven(*command, "--corpus", str(tmp_path / "nowhere"), "--steps", "10")
    assert code == 2 and f"{tmp_path / 'nowhere'} is not a folder; give one with text files" in output

    folder = RunFolder(oven.home / "runs" / "killed")
    begins = ("--token_prior", "kg", "--kg_weight", "0.1", "--mtp_weight", "0.1", "--quantisation", "int8")
    up = oven.start(*command, "--corpus", str(tmp_path / "texts"), "--model", str(config), *begins, "--steps", "100000")
    output = await asyncio.to_thread(oven.until, up, "  step ")
    deadline = time.monotonic() + LIMIT_S
    while (newest := checkpoint_record.find_newest(folder.checkpoints, "killed", "1")) is None:
        assert time.monotonic() < deadline and up.poll() is None, output
        await asyncio.sleep(0.05)
    psutil.Process(folder.info().children["learner"]).kill()
    rest, _ = await asyncio.to_thread(up.communicate, None, LIMIT_S)
    assert up.returncode == 3 and "killed by SIGKILL" in rest, output + rest
    newest = checkpoint_record.find_newest(folder.checkpoints, "killed", "1")
    assert newest is not None
    step = newest[1].step

    code, output = oven("up", "--headless", "--resume", "--run", "killed", "--steps", str(step + 10))
    assert code == 0, output
    events = oven.events("killed")
    starts = [event.body for event in events if isinstance(event.body, RunStarted)]
    assert [start.incarnation for start in starts] == [1, 2] and starts[0].step == 0
    assert starts[1].step == step > 0, "not from its beginning"
    assert starts[0].recipe == "pretrain"
    assert {"optimizer.weight_decay", "data.mixture", "data.skip"} <= {spec.name for spec in starts[0].actuators}
    for start in starts:
        began = {spec.name: spec.value for spec in start.actuators}
        assert [began[f"channel.{name}"] for name in ("kg", "mtp")] == [0.1, 0.1], "the graph's scores are there"
        assert began["train.quantisation"] == "int8"
    assert (folder.checkpoints / "token_prior.bin").stat().st_size <= 1024
    [ended] = [event.body for event in events if isinstance(event.body, RunEnded)]
    assert (ended.reason, ended.step) == ("completed", step + 10)
    assert set(ended.metrics) == {
        "eval/weight_bits",
        *(f"eval/bits_per_byte{suffix}" for suffix in ("", "/one", "/two")),
    }
    seen = [event.body for event in events if isinstance(event.body, Observation)]
    assert {"channel/kg", "channel/mtp"} <= seen[-1].metrics.keys() and ended.metrics["eval/weight_bits"] == 8
    assert [observation.tick for observation in seen] == list(range(1, len(seen) + 1)), (
        "nothing of what was said before is lost"
    )
    measured = {observation.step for observation in seen if "eval/bits_per_byte" in observation.metrics}
    assert {0, step, step + EVAL_EVERY, step + 10} <= measured, "at each beginning, and then as often as was asked for"
    receipts = [event.body for event in events if isinstance(event.body, Receipt)]
    failed = [
        receipt for receipt in receipts if receipt.status not in ("applied", "noop", "expired")
    ]  # ten steps may end first
    assert not failed
    assert replay(events, "killed").same
