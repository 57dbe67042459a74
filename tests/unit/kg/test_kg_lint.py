"""The built-in graph is sound, and the lint finds each kind of fault in one that is not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from oven_core.errors import ConfigError
from oven_core.mesh.change_requirements import NEED_PATTERN
from oven_kg.checked_graph import load
from oven_kg.graph.graph_yaml import Edge, Node, Records, Source, read
from oven_kg.graph.knowledge_graph import KnowledgeGraph
from oven_kg.graph.lint import lint

ROOT = Path(__file__).resolve().parents[3]
RECORDS = read()
REQUIRED = """policy_collapse loss_spike loss_nan reward_plateau slow_progress kl_anchor_binds kl_runaway
entropy_collapse zero_advantage_groups starved_level reward_up_heldout_down judge_outage grad_norm_spike
gradient_noise length_drift"""


def test_the_built_in_graph_is_sound() -> None:
    assert lint(RECORDS) == []
    info = load().info()
    assert sum(info.nodes.values()) >= 200 and sum(info.edges.values()) >= 400 and info.isolated == 0
    assert set(info.edges) == {"INDICATES", "CAUSES", "SOLVES", "PREVENTS", "WORSENS", "REQUIRES", "CONTRADICTS"}
    assert set(info.grades) == {"A", "B", "C", "D"}
    assert set(REQUIRED.split()) <= set(load().nodes)


def test_its_sources_of_this_project_are_in_this_repository() -> None:
    for source in RECORDS.sources:
        assert not source.path or (ROOT / source.path).is_file(), source
        assert not source.arxiv or source.authors


def test_its_metrics_are_published_by_learners() -> None:
    from oven_learner.hf.hooks import frontier_drift, step_hooks, step_metrics
    from oven_learner.optim import optimizer_gauges
    from oven_learner.rewards import calibrated_reward
    from oven_recipes.grpo.settings import GrpoSettings
    from oven_recipes.grpo.training_job import recipe_metrics as recipe

    specs = (*step_metrics.COMMON_METRICS, *step_metrics.GRPO_METRICS, *recipe(GrpoSettings()))
    specs += (*step_metrics.SFT_METRICS, *frontier_drift.METRICS, *calibrated_reward.METRICS)
    specs += (*optimizer_gauges.ALL_GAUGES, step_hooks.REPEATED)
    levels = re.compile(r"^(reward|eval/accuracy)/.+")
    published = {levels.sub(r"\1/*", spec.name) for spec in specs}
    # TRL's own, by name, and what `announced` adds when there is such a thing.
    published |= {"clip_ratio/region_mean", "rewards/*/mean", "kl", "eval/loss"}
    published |= {"step_time", "clip_ratio/high_mean", "rewards/*/std", "sampling/importance_sampling_ratio/mean"}
    to_come = {"committee/*", "committee/agreement", "committee/abstentions", "eval/bits_per_byte"}
    assert {node.id for node in RECORDS.nodes if node.kind == "metric"} <= published | to_come


def test_it_has_every_symptom_that_agents_name() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "agents" / "oven_agents").rglob("*.py"))
    symptoms = set(re.findall(r'"symptom:(\w+)"|_Harm\("(\w+)"|symptom="(\w+)"', sources))
    symptoms = {name for pair in symptoms for name in pair if name}
    assert symptoms >= {"policy_collapse", "loss_nan", "gradients_aligned", "gradients_opposed", "starved_level"}
    kinds = {node.id: node.kind for node in RECORDS.nodes}
    assert {kinds.get(name) for name in symptoms} == {"symptom"}


def test_its_rules_can_be_checked_and_never_bar_the_repair_of_a_collapse() -> None:
    info = load().info()
    assert all(NEED_PATTERN.fullmatch(need) for _, need in info.requirements)
    assert ("optimizer.lr_scale:up", "run.rollback") in info.contradictions
    assert all(first < second for first, second in info.contradictions)
    # What repairs a collapse must never be barred by the graph, alone or together.
    repair = {"run.rollback", "optimizer.lr_scale:down"}
    assert not any(change in repair for change, _ in info.requirements)
    assert not any(set(pair) == repair for pair in info.contradictions)


def with_edge(**fields: object) -> Records:
    """The built-in graph, with one more edge that is a fault."""
    edge = Edge("Z1", "lr_too_high", "CAUSES", "judge_outage", 0.5, "C", "practice")
    return replace(RECORDS, edges=(*RECORDS.edges, replace(edge, **fields)))  # type: ignore[arg-type]


def with_node(node: Node, *edges: Edge) -> Records:
    return replace(RECORDS, nodes=(*RECORDS.nodes, node), edges=(*RECORDS.edges, *edges))


def with_source(**fields: object) -> Records:
    source = Source("z2026", "A title", 2026, checked="read")
    return replace(RECORDS, sources=(*RECORDS.sources, replace(source, **fields)))  # type: ignore[arg-type]


def remedy(**fields: object) -> Records:
    node = replace(Node("z", "remedy"), **fields)  # type: ignore[arg-type]
    return with_node(node, Edge("Z1", "z", "SOLVES", "lr_too_high", 0.5, "C", "practice"))


def need(id_: str) -> Records:
    return with_node(Node(id_, "precondition"), Edge("Z1", "rollback", "REQUIRES", id_, 1, "C", "practice"))


RING = (
    Edge("Z1", "held_out", "REQUIRES", "metric:kl", 1, "C", "practice"),
    Edge("Z2", "metric:kl", "REQUIRES", "held_out", 1, "C", "practice"),
)

FAULTS: list[tuple[Records, str]] = [
    (with_edge(id="C001"), "the edge id 'C001' occurs 2 times"),
    (with_edge(id=""), "1 edges have no id"),
    (with_edge(dst="loss_spike"), "lr_too_high CAUSES loss_spike occurs 2 times"),
    (with_node(RECORDS.nodes[0]), "the node id 'loss' occurs 2 times"),
    (with_edge(relation="HELPS"), "has the unknown relation 'HELPS'"),
    (with_edge(dst="nothere"), "edge Z1 refers to the missing node 'nothere'"),
    (with_edge(dst="lower_lr"), "lower_lr is a remedy, where CAUSES needs a symptom"),
    (with_node(Node("z", "metric")), "the metric 'z' has no edge"),
    (with_edge(strength=0.0), "edge Z1 has strength 0;"),
    (with_edge(strength=float("nan")), "edge Z1 has strength nan;"),
    (with_edge(strength=1.5), "edge Z1 has strength 1.5;"),
    (with_edge(grade=""), "edge Z1 has grade ''"),
    (with_edge(source="nobody1900"), "cites 'nobody1900', which is not in the bibliography"),
    (with_edge(grade="A"), "edge Z1 has grade A, but practice is not a paper"),
    (with_edge(grade="D"), "edge Z1 has grade D and cites practice"),
    (with_edge(source="own-faults"), "edge Z1 has grade C and cites own-faults"),
    (with_edge(grade="A", source="yu2025"), "has no position in yu2025"),
    (with_source(checked=""), "source 'z2026' has `checked: `"),
    (with_source(title=""), "source 'z2026' needs a title and a year"),
    (with_source(arxiv="v1"), "has the arXiv number 'v1'"),
    (remedy(), "the remedy z must either have `changes` or be `advisory: true`"),
    (remedy(advisory=True, changes=("run.stop",)), "the remedy z must either have"),
    (remedy(changes=("optimizer.momentum:up",)), "changes 'optimizer.momentum', which no learner announces"),
    (remedy(changes=("optimizer.lr_scale",)), "write optimizer.lr_scale with :up or :down"),
    (remedy(changes=("run.rollback:up",)), "changes 'run.rollback:up'; write run.rollback"),
    (remedy(advisory=True, phase=("later",)), "z has the phase 'later'"),
    (need("gpu:8"), "the precondition 'gpu:8' cannot be checked"),
    (need("actuator:gpu.count"), "the precondition 'actuator:gpu.count' is not a known actuator"),
    (need("metric:gpu/heat"), "the precondition 'metric:gpu/heat' is not a metric"),
    (replace(RECORDS, edges=(*RECORDS.edges, *RING)), "REQUIRES edges form a cycle: "),
    (with_edge(relation="CONTRADICTS", src="lower_lr", dst="lower_lr"), "edge Z1: lower_lr contradicts itself"),
    (
        with_edge(relation="CONTRADICTS", src="raise_lr", dst="rollback"),
        "edge Z1 repeats that raise_lr and",
    ),
    (
        with_edge(relation="CONTRADICTS", src="rollback_and_cut", dst="rollback"),
        "rollback_and_cut and rollback both make the change run.rollback",
    ),
    (with_edge(relation="WORSENS", src="raise_lr", dst="lr_too_low"), "both SOLVES and WORSENS lr_too_low"),
    (
        with_node(Node("z", "symptom"), Edge("Z1", "loss", "INDICATES", "z", 1, "C", "practice")),
        "the symptom 'z' has no cause",
    ),
    (
        with_node(Node("z", "cause", prior=0.1), Edge("Z1", "z", "CAUSES", "loss_nan", 1, "C", "practice")),
        "the cause 'z' has no remedy",
    ),
    (
        with_node(Node("z", "cause", prior=0.7), Edge("Z1", "z", "CAUSES", "loss_nan", 1, "C", "practice")),
        "the cause z has prior 0.7",
    ),
]


@pytest.mark.parametrize(("records", "words"), FAULTS, ids=[words for _, words in FAULTS])
def test_each_kind_of_fault_is_reported(records: Records, words: str) -> None:
    assert any(words in fault for fault in lint(records)), lint(records)


SMALL = """
metrics: { temperature: { text: "degrees" } }
symptoms: { heat: { text: "too hot" } }
causes: { fan_broken: { text: "the fan stands still", prior: 0.1 } }
remedies: { new_fan: { text: "another fan", advisory: true } }
sources: { smith2020: { title: "Fans", year: 2020, doi: "10.1/x", checked: read } }
edges:
  INDICATES: [{ id: I1, from: temperature, to: heat, strength: 0.9, grade: C, source: practice }]
  CAUSES: [{ id: C1, from: fan_broken, to: heat, strength: 0.9, grade: A, source: smith2020, at: "§2" }]
  SOLVES: [{ id: S1, from: new_fan, to: fan_broken, strength: 0.9, grade: C, source: practice }]
"""


def test_a_users_graph_loads_and_its_hash_depends_on_its_content(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(SMALL)
    graph = load(tmp_path / "g.yaml")
    assert isinstance(graph, KnowledgeGraph) and len(graph.nodes) == 4
    (tmp_path / "g.yaml").write_text("# a comment changes nothing\n" + SMALL)
    assert load(tmp_path / "g.yaml").sha == graph.sha
    (tmp_path / "g.yaml").write_text(SMALL.replace("strength: 0.9, grade: A", "strength: 0.8, grade: A"))
    assert load(tmp_path / "g.yaml").sha != graph.sha


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("metrics: [", "is not a graph in YAML"),
        ("? [a, b]\n: 1", "is not a graph in YAML"),
        ("causes: { a: {}, a: {} }", "'a' is a duplicate"),
        (SMALL + "helpers: {}", "the section 'helpers' is unknown"),
        (SMALL.replace("prior: 0.1", "prior: often"), "causes.fan_broken.prior is 'often', which has the wrong type"),
        (SMALL.replace("prior: 0.1", "prior: 0.1, odds: 3"), "has the unknown field 'odds'"),
        (SMALL.replace("smith2020: {", "yu2025: {"), "the source 'yu2025' is a built-in one"),
    ],
)
def test_a_file_with_faults_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(tmp_path / "g.yaml")
    with pytest.raises(ConfigError, match="cannot read the graph"):
        load(tmp_path / "nothere.yaml")
