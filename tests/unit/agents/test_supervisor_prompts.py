"""What the supervisor is told, and the log's last lines."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from oven_llm.supervisor.prompts import build_opening
from oven_llm.supervisor.repl import parse_programs
from oven_llm.supervisor.run_logger import RunLogger


def test_the_prompt_shows_a_valid_program_and_every_function() -> None:
    system, user = build_opening(
        "Why {so}?",
        "x" * 50,
        output_limit=2000,
        worker_ctx_k=8,
        turns=15,
        concurrency=16,
        block_s=30.0,
        instructions="More.",
    )
    assert parse_programs(system["content"]).blocks == ("print(len(context))\n",)
    for name in (
        "`context`",
        "`query`",
        "`worker(prompt)`",
        "`worker_batch(prompts)`",
        "`FINAL(answer)`",
        "8,000 tokens",
    ):
        assert name in system["content"]
    assert "24,000 characters" in system["content"] and system["content"].endswith("More.")
    assert user["content"].startswith("Question: Why {so}?\n\nThe context is a string of 50 characters in 1 line.")


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")), max_size=5), st.binary(max_size=9))
def test_only_an_unfinished_last_line_is_removed(lines: list[bytes], rest: bytes) -> None:
    import tempfile

    whole = b"".join(line + b"\n" for line in lines)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker.jsonl"
        path.write_bytes(whole + rest.replace(b"\n", b""))
        RunLogger(folder, resume=True).close()
        assert path.read_bytes() == whole
