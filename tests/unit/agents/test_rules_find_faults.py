"""Every rule finds its fault in simulated curves of many lengths, with the right kind, severity and onset."""

from __future__ import annotations

import math
import random

import pytest
from tests.support.simulated_curves import ILL, NO_VALUE, record_of_curves, with_optimizer
from tests.support.simulated_gauges import ILL_GAUGES

from oven_agents.diagnosis.engine import find_findings, verdict
from oven_agents.diagnosis.finding import MIN_ADVICE_CONFIDENCE, Finding
from oven_agents.diagnosis.rules import read_curves
from oven_agents.diagnosis.run_record import RunRecord
from oven_core.protocol.messages import ActuatorSpec

LENGTHS = (10, 30, 120, 600, 5000)
FAULTS = {**ILL, **ILL_GAUGES}
ONSET_TOLERANCE = 0.05
"""Maximum error of an onset as a share of the run, in addition to one logged step."""


def kinds(record: RunRecord) -> dict[str, Finding]:
    """Return the findings that say to do something, by kind."""
    return {finding.kind: finding for finding in find_findings(record) if finding.severity != "note"}


@pytest.mark.parametrize("family", FAULTS)
def test_the_fault_is_found_at_its_onset(family: str) -> None:
    ill = FAULTS[family]
    for length in (max(length, ill.min_length) for length in LENGTHS if length * 2 >= ill.min_length):
        for seed in range(2):
            rng = random.Random(f"{family} {length} {seed}")
            start = rng.uniform(*ill.shares)
            record = record_of_curves(ill.curves(length, start, rng))
            findings = kinds(record)
            assert ill.kind in findings, (length, seed, find_findings(record))
            onset = findings[ill.kind].onset_step
            assert abs(onset - 1 - round(start * length)) <= ONSET_TOLERANCE * length + 1, (length, seed, onset)
            assert findings[ill.kind].message and findings[ill.kind].remedy


@pytest.mark.parametrize("family", FAULTS)
def test_advice_has_the_figures_that_an_alert_needs(family: str) -> None:
    ill = FAULTS[family]
    rng = random.Random(family)
    record = record_of_curves(ill.curves(max(ill.min_length, 600), rng.uniform(*ill.shares), rng))
    advice = [evidence for evidence in read_curves(record) if evidence.weight >= MIN_ADVICE_CONFIDENCE]
    assert ill.kind in {evidence.kind for evidence in advice}
    assert [evidence for evidence in advice if evidence.level is None or evidence.bound is None] == []


def test_onsets_are_steps_and_not_rows_of_the_log() -> None:
    loss = [3 - index / 100 for index in range(100)] + [9.0] * 50
    finding = kinds(record_of_curves({"loss": loss}, first_step=10, step_size=10))["diverged"]
    assert finding.onset_step == 1010


def test_a_message_also_names_the_column_of_another_programs_log() -> None:
    loss = [3 - index / 100 for index in range(100)] + [9.0] * 50
    record = record_of_curves({"loss": loss, "eval/loss": loss})
    record.columns = {"loss": "train/box_loss", "eval/loss": "val/box_loss"}
    assert "the loss (train/box_loss) rose from" in kinds(record)["diverged"].message


def test_a_loss_that_rises_while_held_out_quality_improves_is_advice() -> None:
    loss = [3 - index / 100 for index in range(100)] + [9.0] * 50
    held_out = [NO_VALUE if index % 10 else 3 - index / 100 for index in range(150)]
    finding = kinds(record_of_curves({"loss": loss, "eval/loss": held_out}))["diverged"]
    assert finding.severity == "advise" and "keep the run" in finding.remedy and "(step 141)" in finding.remedy


def test_overfitting_says_which_other_held_out_losses_rose() -> None:
    falling = [2 - index / 100 for index in range(150)]
    rising = [NO_VALUE if index % 10 else 1 + abs(index - 40) / 50 for index in range(150)]
    curves = {"loss": falling, "eval/a_loss": rising, "eval/b_loss": rising, "eval/c_loss": falling}
    message = kinds(record_of_curves(curves))["overfit"].message
    assert "; eval/b_loss rose, too; eval/c_loss did not rise like this" in message


def test_a_log_with_two_runs_and_a_resume_says_which_is_which() -> None:
    record = record_of_curves({"loss": [3 - index / 100 for index in range(150)]})
    record.steps = [*range(1, 51), *range(1, 51), *range(40, 90)]
    record.start_count = 3
    findings = find_findings(record)
    note = next(finding for finding in findings if finding.kind == "steps_out_of_order")
    assert "from 50 back to 1 at row 51 (starts again), from 50 back to 40 at row 101 (resumed)" in note.message
    assert verdict(record, findings).startswith("nothing needs action if this is one run")


def test_a_policy_that_is_dead_after_its_collapse_gets_one_finding() -> None:
    curves = ILL["same_answer"].curves(200, 0.3, random.Random(1))
    record = record_of_curves(curves | {"loss": [0.3 + 0.01 * (n % 7) if n < 70 else 0.0 for n in range(200)]})
    (finding,) = kinds(record).values()
    assert finding.kind == "dead"
    assert "nothing is learnt. That followed a collapse: the reward fell" in finding.message
    assert "learning rate" in finding.remedy


@pytest.mark.parametrize("kind", ["nan", "dead", "diverged"])
def test_a_broken_run_gets_one_diagnosis(kind: str) -> None:
    """A loss that diverges or dies is neither stuck nor a healed spike, too."""
    family = {"nan": "nan_loss", "dead": "zero_loss", "diverged": "blow_up"}[kind]
    rng = random.Random(5)
    found_kinds = [f.kind for f in find_findings(record_of_curves(ILL[family].curves(300, 0.4, rng)))]
    assert found_kinds[0] == kind and set(found_kinds) <= {kind, "never_evaluated"}


@pytest.mark.parametrize(("index", "severity"), [(190, "advise"), (60, "note")])
def test_a_single_value_that_is_not_finite_needs_action_until_the_loss_has_healed(index: int, severity: str) -> None:
    loss = [3 * math.exp(-index / 50) + 1 for index in range(200)]
    broken = [*loss[:index], math.nan, *loss[index + 1 :]]
    findings = {finding.kind: finding for finding in find_findings(record_of_curves({"loss": broken}))}
    assert findings["nan"].severity == severity and findings["nan"].onset_step == index + 1
    assert kinds(record_of_curves({"loss": loss, "grad_norm": broken})) == {}


def test_a_rate_that_fades_out_at_the_end_of_the_run_is_no_fault() -> None:
    rng = random.Random(1)
    for rate in (lambda p: 1 - p, lambda p: (1 + math.cos(math.pi * p)) / 2, lambda p: min(1.0, 10 * (1 - p))):
        curves = with_optimizer({"loss": [2 + math.exp(-n / 50) for n in range(300)]}, 300, rng, rate)
        assert kinds(record_of_curves(curves)) == {}


def test_gradients_that_are_always_clipped_and_missing_evaluations_are_only_notes() -> None:
    rng = random.Random(2)
    curves = with_optimizer({"loss": [2 + math.exp(-n / 50) for n in range(300)]}, 300, rng, lambda p: 1.0)
    record = record_of_curves(curves | {"grad_norm": [50 + rng.gauss(0, 1) for _ in range(300)]})
    clip = ActuatorSpec(name="grad.clip", kind="scalar", scale="log", low=0.01, high=100, value=1.0)
    record.first_values[clip.name] = clip.value
    findings = find_findings(record)
    assert {finding.kind for finding in findings} == {"always_clipped", "never_evaluated"}
    assert {finding.severity for finding in findings} == {"note"}


def test_groups_without_differences_are_a_note() -> None:
    shares = [0.95 - 0.001 * (n % 5) for n in range(100)]
    record = record_of_curves({"reward": [0.2 + n / 200 for n in range(100)], "frac_reward_zero_std": shares})
    assert {f.kind: f.severity for f in find_findings(record)}["zero_advantage_groups"] == "note"


def test_a_loss_that_falls_and_rises_with_its_evaluations_has_diverged_rather_than_overfitted() -> None:
    level = [2.0 - n / 100 if n < 100 else 1 + (n - 100) / 60 for n in range(200)]
    held_out = [value if n % 10 == 9 else NO_VALUE for n, value in enumerate(level)]
    findings = kinds(record_of_curves({"loss": level, "eval/loss": held_out}))
    assert "diverged" in findings and "overfit" not in findings


def test_a_stuck_loss_is_compared_with_guessing_only_if_it_is_near_it() -> None:
    rng = random.Random(3)
    texts = {
        level: kinds(record_of_curves({"loss": [level + rng.gauss(0, 0.005) for _ in range(200)]}))["stuck"].message
        for level in (math.log(2), math.log(10), 2.87)
    }
    assert (
        "0.6931 = ln 2, what an output of 0.5 everywhere gives" in texts[math.log(2)]
        and "guessing among 10 classes" in texts[math.log(10)]
    )
    assert "guessing" not in texts[2.87], (
        "17 classes give 2.83 and 18 give 2.89, so a language model is near one of them"
    )


def test_a_policy_gradient_without_gradients_is_dead() -> None:
    constant = {"loss": [0.0] * 100, "reward": [0.3] * 100, "grad_norm": [0.0] * 100}
    assert kinds(record_of_curves(constant))["dead"].severity == "act"


@pytest.mark.parametrize(("after", "kinds_of_spikes"), [([1.0] * 5, ["spike_recovered"]), ([90.0], [])])
def test_a_spike_has_recovered_only_if_the_norm_came_back(after: list[float], kinds_of_spikes: list[str]) -> None:
    norms = [1 + 0.02 * math.sin(5 * n) for n in range(200)] + [90.0, *after]
    record = record_of_curves({"loss": [2 + math.exp(-n / 50) for n in range(len(norms))], "grad_norm": norms})
    spikes = [finding.kind for finding in find_findings(record) if finding.kind == "spike_recovered"]
    assert spikes == kinds_of_spikes


@pytest.mark.parametrize(("held_out", "severity"), [(None, "note"), ("falls", "note"), ("flat", "advise")])
def test_steps_at_epochs_are_advice_only_if_repeated_passes_are_useless(held_out: str | None, severity: str) -> None:
    rng = random.Random(4)
    passes = [min(2, n // 100) for n in range(300)]
    curves = {
        "loss": [2 * 0.75**number + rng.gauss(0, 0.02) for number in passes],
        "epoch": [(n + 1) / 100 for n in range(300)],
    }
    if held_out is not None:
        falls = 0.1 if held_out == "falls" else 0.0
        curves["eval/loss"] = [2 - falls * passes[n] if n % 20 == 19 else NO_VALUE for n in range(300)]
    finding = next(f for f in find_findings(record_of_curves(curves)) if f.kind == "memorising")
    assert (finding.severity, finding.onset_step) == (severity, 101)


@pytest.mark.parametrize("borders", [(100,), (60, 200)])
def test_a_step_that_is_not_at_every_border_is_not_memorising(borders: tuple[int, ...]) -> None:
    """One border is too few, and a loss that falls within the passes says nothing about their borders."""
    loss = [2 - 0.5 * sum(n >= border for border in borders) + 0.01 * (n % 5) for n in range(300)]
    epochs = [float(sum(n >= border for border in (100, 200)[: len(borders)])) for n in range(300)]
    assert "memorising" not in {f.kind for f in find_findings(record_of_curves({"loss": loss, "epoch": epochs}))}


def test_chosen_answers_that_fall_much_less_than_rejected_ones_are_a_note() -> None:
    curves = {
        "loss": [0.69 - 0.002 * n for n in range(100)],
        "rewards/chosen": [-0.005 * n + 0.05 * (n % 3) for n in range(100)],
        "rewards/rejected": [-0.05 * n + 0.05 * (n % 5) for n in range(100)],
    }
    finding = next(f for f in find_findings(record_of_curves(curves)) if f.kind == "chosen_less_likely")
    assert finding.severity == "note" and "rewards/chosen fell from" in finding.message


def test_log_probabilities_show_it_if_the_log_has_no_implicit_rewards() -> None:
    curves = {
        "loss": [0.69 - 0.002 * n for n in range(100)],
        "logps/chosen": [-100 - n + 3.0 * (n % 3) for n in range(100)],
        "logps/rejected": [-110 - 1.2 * n + 3.0 * (n % 5) for n in range(100)],
    }
    assert kinds(record_of_curves(curves))["chosen_less_likely"].metric == "logps/chosen"


def test_longer_completions_are_advice_only_if_the_reward_does_not_rise() -> None:
    lengths = [100.0 + 5 * n + n % 7 for n in range(100)]
    for gain, severity in ((0.0, "advise"), (0.005, "note")):
        reward = [0.2 + gain * n + 0.01 * (n % 5) for n in range(100)]
        findings = find_findings(record_of_curves({"reward": reward, "completions/mean_length": lengths}))
        assert next(f for f in findings if f.kind == "length_drift").severity == severity


def test_norms_that_are_logged_after_clipping_show_the_clip() -> None:
    rng = random.Random(7)
    norms = [1.0 - 1e-6 * rng.random() if n % 30 else 0.4 for n in range(300)]
    record = record_of_curves({"loss": [2 + math.exp(-n / 50) for n in range(300)], "grad_norm": norms})
    note = next(f for f in find_findings(record) if f.kind == "always_clipped")
    assert note.severity == "note" and "the logged gradient norm is 1 in 97% of the steps" in note.message


def test_without_rewards_nothing_is_said_about_them() -> None:
    curves = {
        "loss": [2 + math.exp(-n / 50) for n in range(300)],
        "completions/mean_length": [90.0 if n < 150 else 1.0 for n in range(300)],
    }
    finding = next(f for f in find_findings(record_of_curves(curves)) if f.kind == "empty_completions")
    assert finding.severity == "advise" and "too few rewards to compare" in finding.message
