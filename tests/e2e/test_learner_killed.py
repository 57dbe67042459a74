"""A learner that is killed, and gone on with: from the checkpoint that was there, not from its beginning."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import psutil
import pytest
from tests.e2e.conftest import LIMIT_S, Oven
from tests.e2e.test_pretrain_runs import SIZES

from oven_controller.log.replay import replay
from oven_controller.protocol.messages import Observation, RunEnded, RunStarted
from oven_controller.runs.folder import RunFolder
from oven_learner.rollback import checkpoint_record

pytestmark = pytest.mark.e2e


async def test_it_goes_on_from_what_it_had_on_disk(oven: Oven, tmp_path: Path) -> None:
    for name in ("one/a", "one/b", "two/a", "two/b"):
        file = tmp_path / "texts" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{name} has words, and more words, and {name} again. " * 40)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}))
    sizes = [part for name, size in SIZES.items() for part in ("--set", f"recipe_options.{name}={size}")]
    more = ["--corpus", str(tmp_path / "texts"), "--model", str(config), "--set", "kg=false", *sizes]
    folder = RunFolder(oven.home / "runs" / "killed")
    up = oven.start("up", "--headless", "--recipe", "pretrain", "--start", "tuned", "--run", "killed", *more,
                    "--steps", "100000")  # fmt: skip
    said = await asyncio.to_thread(oven.until, up, "  step ")
    deadline = time.monotonic() + LIMIT_S
    while (newest := checkpoint_record.newest(folder.checkpoints, "killed", "1")) is None:
        assert time.monotonic() < deadline and up.poll() is None, said
        await asyncio.sleep(0.05)
    psutil.Process(folder.info().children["learner"]).kill()
    rest, _ = await asyncio.to_thread(up.communicate, None, LIMIT_S)
    assert up.returncode == 3 and "killed by SIGKILL" in rest, said + rest
    newest = checkpoint_record.newest(folder.checkpoints, "killed", "1")
    assert newest is not None
    step = newest[1].step

    code, said = oven("up", "--headless", "--resume", "--run", "killed", "--steps", str(step + 10))
    assert code == 0, said
    events = oven.events("killed")
    starts = [event.body for event in events if isinstance(event.body, RunStarted)]
    assert [one.incarnation for one in starts] == [1, 2] and starts[0].step == 0
    assert starts[1].step == step > 0, "not from its beginning"
    ends = [event.body for event in events if isinstance(event.body, RunEnded)]
    assert [(one.reason, one.step) for one in ends] == [("completed", step + 10)]
    seen = [event.body for event in events if isinstance(event.body, Observation)]
    assert [one.tick for one in seen] == list(range(1, len(seen) + 1)), "nothing of what was said before is lost"
    assert replay(events, "killed").same
