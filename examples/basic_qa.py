"""Answer a question about a long text: one model writes programs, and another reads the parts.

    export TOGETHER_API_KEY=…
    python examples/basic_qa.py                                # about the source of Python's argparse
    python examples/basic_qa.py paper.txt "Which method won?"

Your own server needs no key: `BASE_URL=http://127.0.0.1:8000/v1 SUPERVISOR_MODEL=… WORKER_MODEL=…`. LOG_DIR is the
folder of the logs, by default `logs/basic_qa`. If that folder has a run, the next one gets a number.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from oven_core.errors import OvenError
from oven_llm.supervisor.model_handlers import configured_model
from oven_llm.supervisor.orchestrator import run

QUESTION = "Which classes of this module derive from Action, directly or not? Answer with their names in a sorted list."


def main(text: Path, question: str) -> int:
    log_dir = unused(Path(os.environ.get("LOG_DIR", "logs/basic_qa")))
    with configured_model("supervisor") as supervisor, configured_model("worker") as worker:
        result = run(question, text.read_text(), supervisor, worker, log_dir=log_dir)
    print(result.answer if result.answered else f"no answer ({result.ended}): {result.reason}")
    tokens = result.supervisor_usage, result.worker_usage
    print(f"{result.iterations} turns, {result.calls} calls, {result.elapsed:.1f} s", file=sys.stderr)
    print(f"supervisor {tokens[0]}, worker {tokens[1]}, US dollars {result.cost_usd}", file=sys.stderr)
    return 0 if result.answered else 1


def unused(folder: Path) -> Path:
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in range(2, 1000))
    return next((one for one in (folder, *numbered) if not (one / "supervisor.jsonl").exists()), folder)


if __name__ == "__main__":
    given = sys.argv[1:]
    try:
        sys.exit(main(Path(given[0] if given else argparse.__file__), given[1] if len(given) > 1 else QUESTION))
    except (OvenError, OSError) as error:
        sys.exit(f"error: {error}")
