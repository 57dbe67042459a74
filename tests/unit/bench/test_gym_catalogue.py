"""The catalogue of families: how one is added, here and by another package, and what holds of all of them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

from oven_bench.gym import episode_schedule, faults, runner
from oven_bench.gym.fault import SETS, Fault, fault
from oven_bench.gym.faults import catalogue
from oven_bench.gym.seeded_draws import At
from oven_bench.gym.task_table import task
from oven_core.errors import ConfigError

FOLDER = Path(faults.__file__).parent
MODULES = sorted(FOLDER.glob("*/*.py"))

OWN = '''
from oven_bench.gym.fault import Fault, fault
from oven_bench.gym.seeded_draws import uniform

@fault("grpo.of_ours", written="held out")
class OfOurs(Fault):
    """The sampler is too warm."""

    temperature: float = uniform(1.2, 3.0)

    def settings(self, step):
        step.settings["temperature"] = self.temperature
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    def pip(source: str, target: str) -> None:
        """What pip leaves of a package with one module and one entry point."""
        (tmp_path / "of_ours.py").write_text(source)
        info = tmp_path / "of_ours-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of-ours\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[oven.faults]\nof_ours = {target}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "of_ours", raising=False)

    return pip


@pytest.mark.parametrize("target", ["of_ours:OfOurs", "of_ours"])
def test_a_users_own_family_is_a_class_and_an_entry_point(install: Callable[[str, str], None], target: str) -> None:
    before = catalogue.families()
    install(OWN, target)
    found = catalogue.families()
    assert {*found} - {*before} == {"grpo.of_ours"} and {*before} < {*found}
    own = found["grpo.of_ours"]
    assert (own.kind, own.written, own.held_out, own.healthy) == ("grpo", "held out", True, False)
    assert episode_schedule.drawn(own, 7) == episode_schedule.drawn(own, 7) != episode_schedule.drawn(own, 8)
    (task,) = runner.missing([own], [7], ["nothing"], [])
    assert (task.family, task.kind) == ("grpo.of_ours", "grpo")


def test_a_name_that_is_taken_is_refused_with_both_places(install: Callable[[str, str], None]) -> None:
    install(OWN.replace("grpo.of_ours", "grpo.lr_too_high"), "of_ours:OfOurs")
    with pytest.raises(ConfigError) as refused:
        catalogue.families()
    said = str(refused.value)
    assert "'grpo.lr_too_high'" in said and "of_ours.OfOurs" in said
    assert "oven_bench.gym.faults.grpo.settings.RateTooHigh" in said and said.count("\n") == 0


def test_what_is_no_family_is_refused(install: Callable[[str, str], None]) -> None:
    install("OfOurs = 1", "of_ours:OfOurs")
    with pytest.raises(ConfigError, match="no family of faults"):
        catalogue.families()


def test_a_kind_and_a_set_have_to_be_there() -> None:
    for name, written in (("image.blurred", "development"), ("grpo.blurred", "ninth set")):
        with pytest.raises(ConfigError, match="none of"):
            fault(name, written=written)(type("Blurred", (Fault,), {}))  # type: ignore[arg-type]


def test_every_set_has_its_families() -> None:
    found = [family.written for family in catalogue.families().values()]
    sizes = {written: found.count(written) for written in SETS}  # type: ignore[arg-type]
    assert sizes.pop("development") == 35 and sizes.pop("held out") == 0
    assert sizes.pop("first set") == 17 and sizes.pop("set D") == 9
    added = sizes.pop("trials set")
    assert {*sizes.values()} == {14} and len(found) - added == 201


@pytest.mark.parametrize("family", catalogue.families().values(), ids=lambda family: family.name)
def test_every_family_says_what_it_does_and_draws_from_mild_to_severe(family: type[Fault]) -> None:
    assert family.__doc__ and family.__doc__.rstrip().endswith(".") and "healthy." not in family.__doc__.lower()
    assert family.__module__.startswith(task(family.kind).faults)
    cases = [family.draw(Random(seed), 110) for seed in range(8)]
    assert cases == [family.draw(Random(seed), 110) for seed in range(8)]
    assert {case.onset for case in cases} <= {0, 110}
    assert all(case.length >= 1 for case in cases)
    assert family.draw(At(0.0), 110) and family.draw(At(1.0), 110)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_no_family_reads_a_private_attribute_or_a_trainee(path: Path) -> None:
    tree = ast.parse(path.read_text())
    private = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    assert private == []
    assert len(path.read_text().splitlines()) <= 450
    assert import_module(f"{faults.__name__}.{path.parent.name}.{path.stem}".removesuffix(".__init__"))
