"""`bench hostile` at sizes that take seconds: an attack on a real run beside the run without it, and the rest of it
from the file of rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.conftest import Oven

from oven_core.protocol.events import Event
from oven_core.protocol.messages import BallotOpened, RunEnded, Vote

pytestmark = pytest.mark.e2e


def accuracy(events: list[Event]) -> float:
    """What a run says of itself at its end."""
    [ended] = [event.body for event in events if isinstance(event.body, RunEnded)]
    return ended.metrics["eval/accuracy"]


def test_an_attack_is_made_and_stands_beside_the_run_without_it(oven: Oven, tmp_path: Path) -> None:
    rows, home = tmp_path / "rows.jsonl", tmp_path / "home"
    command = ["bench", "hostile", "--quick", "--attacks", "silencer", "--starts", "tuned", "--seeds", "101"]
    command += ["--noise-seeds", "1", "--steps", "30", "--jobs", "1", "--rows", str(rows)]
    # Cold: the guest, which nothing forks, has to join before 30 steps are over.
    code, said = oven(*command, "--home", str(home), "--json", cold=True)
    assert code == 0, said
    found = json.loads(said.splitlines()[-1])
    [attack] = found["attacks"]
    assert {
        "name", "start", "seed", "accuracy", "without", "within_noise", "remedy_windows", "log_ratio", "reputation",
        "honest_reputation", "processes_left", "exit",
    } <= set(attack)  # fmt: skip
    assert (attack["name"], attack["start"], attack["seed"]) == ("silencer", "tuned", 101)
    assert (attack["processes_left"], attack["exit"]) == (0, 0)
    assert found["newcomer"] == [] and set(found["noise"]) == {"tuned"} and found["steps"] == 30

    logs = [
        [Event.from_line(line) for line in path.read_text().splitlines()]
        for path in (home / "runs").glob("*/log.jsonl")
    ]
    assert len(logs) == 2
    [attacked] = [events for events in logs if any(event.author == "silencer" for event in events)]
    [plain] = [events for events in logs if events is not attacked]
    assert [attack["accuracy"], attack["without"]] == [round(accuracy(of), 4) for of in (attacked, plain)]
    assert attack["log_ratio"] == round(len(attacked) / len(plain), 2)
    votes = [event.body for event in attacked if isinstance(event.body, Vote) and event.author == "silencer"]
    assert votes and {vote.actuator for vote in votes} == {"optimizer.lr_scale"}
    assert {vote.confidence for vote in votes} == {0.01}
    assert not any(isinstance(e.body, BallotOpened) and e.body.opened_by == "silencer" for e in attacked)

    code, said = oven(*command, "--home", str(home))
    assert code == 0, said
    assert "silencer" in said and "noise from tuned" in said
    assert len(list((home / "runs").iterdir())) == 2, "what is in the file is not run again"
    assert len(rows.read_text().splitlines()) == 3
