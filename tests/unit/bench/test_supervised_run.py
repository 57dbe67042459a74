"""`bench supervised-run`: how slots are judged, and a diagnosis of a short log."""

from __future__ import annotations

import pytest

from oven_bench.supervising.command import judged, measure_loop
from oven_bench.supervising.slow_endpoint import reply
from oven_llm.sandbox.probe import probe
from oven_llm.supervisor.model_calls import CUT_SHORT


def test_a_slot_is_right_only_with_its_own_prompts_answer() -> None:
    own, other = reply("prompt 0"), reply("prompt 1")
    assert judged([own]) == {"right": 1}
    assert judged([other]) == judged([""]) == judged([None]) == judged([{"failed": None}]) == {"wrong": 1}
    assert judged([own[:9] + CUT_SHORT]) == {"cut": 1} and judged([own[:9]]) == {"wrong": 1}
    assert judged([other[:9] + CUT_SHORT]) == {"wrong": 1}
    assert judged([{"failed": "timeout: no answer within 10 s"}]) == {"timeout": 1}


@pytest.mark.skipif(not probe().backends, reason="this machine has no backend of the sandbox")
def test_the_log_is_diagnosed() -> None:
    found = measure_loop(1000, 1)
    assert (found["right"], found["turns"]) == (1, 3)
