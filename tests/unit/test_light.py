"""What must stay light, stays light: each is imported in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "transformers",
    "trl",
    "datasets",
    "numpy",
    "scipy",
    "pyarrow",
    "pyoxigraph",
    "textual",
    "aiohttp",
    "openai",
    "anthropic",
    "httpx2",
    "genai_prices",
    "mcp",
)


@pytest.mark.parametrize(
    "modules",
    [
        "oven_agents.runtime.agent_host, oven_agents.shipped.learning_rate, oven_agents.shipped.curriculum",
        "oven_llm.judges.member_process",
        "oven_llm.providers.openai_compatible, oven_llm.providers.anthropic",
        "oven_agents.shipped.reward_weights",
        "oven_core.replica.replica_process, oven_runs.log.replay, oven_llm.sandbox.confined_sandbox",
        "oven_controller.cli.main, oven_controller.cli.monitor, oven_controller.stack.up, "
        "oven_controller.importing.import_run, oven_controller.importing.tensorboard, oven_controller.importing.wandb",
        "oven_tui.model.monitor_view, oven_tui.model.braille_chart, oven_tui.log_feed, oven_tui.main, "
        "oven_bench.performance.monitor",
        "oven_learner, oven_recipes.grpo.recipe, oven_learner.custom_loop, oven_bench.training.drawn_starts",
        "oven_recipes.distillation.recipe, oven_recipes.pretrain.recipe",
        "oven_recipes.grpo.settings as grpo; grpo.parse_start('tuned', 1, grpo.GrpoSettings())",
        "oven_learner.rewards, oven_recipes.grpo.sorting_task, oven_bench.committee",
        "oven_kg.service.service_process, oven_controller.cli.kg_inspect",
    ],
)
def test_importing_it_pulls_in_nothing_heavy(modules: str) -> None:
    code = f"import sys, {modules}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_networkx_imports_none_of_our_modules() -> None:
    """networkx imports the entry points that packages add to it; we add none."""
    code = "import sys, networkx; print([name for name in sys.modules if name.startswith('oven')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_answers_from_the_built_in_graph_pull_in_nothing_heavy() -> None:
    """Also when they are given: a graph of a few hundred nodes needs no arrays."""
    code = f"""
import json, sys
from oven_kg.checked_graph import load
from oven_kg.service.endpoints import PriorService
answers = PriorService(load())
said = {{
    "info": {{}},
    "diagnose": {{"symptoms": [{{"id": "loss_spike"}}]}},
    "judge": {{"changes": "optimizer.lr_scale:down"}},
    "curriculum": {{"mastery": [{{"topic": "sums", "successes": 3, "failures": 1}}]}},
    "query": {{"op": "ppr", "node": "loss_spike"}},
    "token_prior": {{"method": "unigram", "vocabulary": ["loss", "rate", "ing"], "counts": [1, 2, 3]}},
}}
for endpoint, request in said.items():
    assert len(answers(endpoint, json.dumps(request).encode())) > 50, endpoint
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stderr
