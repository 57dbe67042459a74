"""The evidence of a vote: the kind of its signal, and the metrics that it read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_core.protocol.evidence import KINDS, EvidenceKind, Signal, read_signal, signal_of_metrics
from oven_core.protocol.messages import MetricSpec

names = st.text(st.characters(codec="utf-8", exclude_characters=","), min_size=1, max_size=12)
signals = st.builds(Signal, st.sampled_from(KINDS), st.lists(names, min_size=1, max_size=4).map(tuple))


@given(signals)
def test_a_signal_is_read_back_from_its_entry(signal: Signal) -> None:
    assert read_signal(("symptom:loss_spike", signal.entry, "signal:data:other")) == signal


@pytest.mark.parametrize(
    "entry",
    ["", "signal:", "signal::", "signal:loss", "signal:loss:", "signal:loss:,,", "signal:LOSS:loss", "signal:no:x",
     "signal: loss:x", "SIGNAL:loss:x", " signal:loss:x", "signal:\x00:x", "signal:loss\n:x", "loss"],
)  # fmt: skip
def test_an_invalid_entry_is_no_signal(entry: str) -> None:
    assert read_signal((entry,)) is None
    assert read_signal((entry, "signal:loss:x")) == Signal("loss", ("x",)), "the first valid one counts"


def test_only_the_graph_reads_no_metric() -> None:
    assert read_signal(("signal:graph:",)) == Signal("graph", ())
    assert read_signal(("signal:rewards:",)) is None


@given(st.lists(st.text(max_size=40), max_size=32))
def test_no_text_makes_it_raise(entries: list[str]) -> None:
    assert read_signal(entries) is None or any(entry.startswith("signal:") for entry in entries)


@given(signals, signals)
def test_independence_is_symmetric_and_needs_other_kinds_and_metrics(first: Signal, second: Signal) -> None:
    independent = first.is_independent_of(second)
    assert independent == second.is_independent_of(first)
    assert independent == (first.kind != second.kind and not set(first.metrics) & set(second.metrics))
    assert not first.is_independent_of(first)


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        ("grad_norm", "gradients"), ("optim/grad_momentum_cos", "gradients"), ("loss", "loss"), ("sft/loss", "loss"),
        ("eval/loss", "held_out"), ("eval_loss", "held_out"), ("reward", "rewards"), ("reward/len3", "rewards"),
        ("rewards/format/mean", "judges"), ("entropy", "policy"), ("kl", "policy"), ("data/repeated", "data"),
        ("weight_norm", "weights"), ("optim/weight_norm", "weights"), ("learning_rate", "schedule"),
        ("progress", "schedule"),
    ],
)  # fmt: skip
def test_standard_metrics_have_a_kind(metric: str, kind: EvidenceKind) -> None:
    assert signal_of_metrics((metric,)) == Signal(kind, (metric,))


def test_the_kind_is_that_of_the_first_known_metric() -> None:
    assert signal_of_metrics(("mine", "grad_norm", "loss")) == Signal("gradients", ("mine", "grad_norm", "loss"))
    assert signal_of_metrics(("mine",)) is None and signal_of_metrics(()) is None


def test_a_metric_that_the_run_announces_as_held_out_is_of_that_kind() -> None:
    announced = (MetricSpec(name="val_loss", better="down", held_out=True),)
    assert signal_of_metrics(("val_loss",), announced) == Signal("held_out", ("val_loss",))
    assert signal_of_metrics(("val_loss",)) == Signal("loss", ("val_loss",))


def test_a_pattern_stands_for_the_announced_metrics_that_match() -> None:
    announced = tuple(MetricSpec(name=name) for name in ("reward", "reward/a", "reward/b", "loss"))
    signal = signal_of_metrics(("data.mixture", "reward/*"), announced)
    assert signal == Signal("data", ("data.mixture", "reward/a", "reward/b"))
    assert not signal.is_independent_of(Signal("rewards", ("reward/b",)))
    assert signal_of_metrics(("reward/*",)) == Signal("rewards", ("reward/*",)), "none announced"
