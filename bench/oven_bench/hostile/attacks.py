"""The attacks by name. Each says which agents it plugs in and how; their code is in `agents/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from oven_core.errors import UnknownNameError

STARTS: Final = {"tuned": "tuned", "drill": "drill:lr-high", "drill-low": "drill:lr-low"}
"""Value of `--starts` → the recipe's name for that start. Without a remedy, `drill` ends at accuracy 0. `drill-low`
needs no rollback, so its outcomes can be scored."""
USUAL_STARTS: Final = ("tuned", "drill")
HONEST: Final = "learning_rate"
"""The shipped agent whose reputation is compared with an attacker's, and which the newcomer replaces."""


@dataclass(frozen=True)
class Guest:
    """An agent to plug in. `agent`: started with `agent run`. `client`: a separate process with a key from `creds add`.
    `stack`: listed under `agents` in the settings; the stack starts, supervises and ends it under its file's name."""

    name: str
    how: Literal["agent", "client", "stack"]
    file: str
    argument: str = ""

    @property
    def path(self) -> Path:
        return folder() / f"{self.file}.py"


@dataclass(frozen=True)
class Attack:
    name: str
    what: str
    guests: tuple[Guest, ...]
    starts: tuple[str, ...] = tuple(STARTS)
    left_out: tuple[str, ...] = ()
    """Shipped agents that are not in this run."""
    granted: tuple[str, ...] = ()
    """Actuators that `oven-controller trust` grants to each guest in the first ticks of training."""
    approved: bool = False
    """Whether a person approves decisions that are only advised because none but newcomers support them."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(guest.name for guest in self.guests)

    @property
    def honest(self) -> bool:
        """Whether this is a well-meaning newcomer, which is reported separately from the attacks."""
        return bool(self.left_out)


NOBODY: Final = Attack("", "the run without an attack", ())


def _client(kind: str) -> tuple[Guest, ...]:
    return (Guest(kind, "client", "clients_without_sdk", kind),)


def _agent(file: str, *names: str) -> tuple[Guest, ...]:
    return tuple(Guest(name, "agent", file) for name in names or (file,))


def _in_the_stack(file: str) -> tuple[Guest, ...]:
    return (Guest(file, "stack", file),)


_RATE = ("optimizer.lr_scale",)
_DRILLS = ("drill", "drill-low")
_PAIR = _agent("pair", "pair-1", "pair-2")
_ALL = (
    Attack("pair", "two newcomers propose ten times the rate and veto every cut", _PAIR),
    Attack("late_pair", "the same, from tick 60 on", _agent("late_pair", "pair-1", "pair-2")),
    Attack("swings", "a newcomer moves the rate to a tenth and back", _agent("swings")),
    Attack("contrary", "vetoes every ballot that learning_rate opens", _agent("contrary")),
    Attack("pair_and_contrary", "pair and contrary together", (*_PAIR, *_agent("contrary"))),
    Attack("silencer", "keeps a ballot on the rate open, at confidence 0.01", _client("silencer")),
    Attack("starver", "keeps a ballot open on every actuator", _client("starver")),
    Attack("flooder", "500 votes per second", _client("flooder")),
    Attack("free_rider", "repeats the proposals of learning_rate, at confidence 0.01", _agent("free_rider")),
    Attack("hangs", "never returns from its first vote", _in_the_stack("hangs")),
    Attack("leaks", "leaks 8 MiB per vote", _in_the_stack("leaks")),
    Attack("forks", "starts programs that outlive it", _in_the_stack("forks")),
    Attack("trust_farmer", "opens learning_rate's ballots a tick before it; proposes ten times the rate from tick 60",
           _agent("trust_farmer")),
    Attack("metric_chooser", "trusted with the rate; raises it tenfold and names a metric that does not suffer",
           _agent("metric_chooser"), granted=_RATE),
    Attack("trusted_liar", "trusted with the rate; moves it to a tenth and back, to freeze it for all agents",
           (Guest("trusted_liar", "agent", "swings"),), granted=_RATE),
    Attack("twenty_newcomers", "twenty newcomers propose two changes each at every tick",
           tuple(Guest(f"hopeful-{n}", "client", "clients_without_sdk", "hopeful") for n in range(1, 21))),
    Attack("newcomer", "honest: learning_rate under another name, without the original, a person approves its advice",
           _agent("newcomer"), _DRILLS, (HONEST,), approved=True),
    Attack("newcomer_granted", "the same, granted its knobs by `oven-controller trust`, no person", _agent("newcomer"),
           _DRILLS, (HONEST,), granted=("optimizer.lr_scale", "run.rollback", "run.evaluate")),
)  # fmt: skip
ATTACKS: Final = {attack.name: attack for attack in _ALL}
USUAL: Final = tuple(name for name, attack in ATTACKS.items() if not (attack.honest and attack.granted))
"""The attacks that run without `--attacks`."""


def named(names: Sequence[str]) -> list[Attack]:
    """The attacks of these names, in the table's order. Raises UnknownNameError."""
    for name in names:
        if name not in ATTACKS:
            raise UnknownNameError("attack", name, ATTACKS)
    return [attack for name, attack in ATTACKS.items() if name in names]


def folder() -> Path:
    """The folder of the attackers' files."""
    return Path(__file__).parent / "agents"
