"""FrameReader and the conversation over them: what a child may say, and what it may not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.traces import json_values

from oven_core.errors import ConfigError
from oven_llm.sandbox import message_format
from oven_llm.sandbox.backend_detection import Support, choose_backend
from oven_llm.sandbox.bpf import X86_64
from oven_llm.sandbox.child_conversation import ChildExitedError, Exchange
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.message_format import FrameError, FrameReader, decode, encode, pack_frame
from oven_llm.sandbox.sandbox import CallError, FinalAnswer

LONGEST = {message_format.OUT: 100, message_format.DONE: 50}


@given(st.lists(st.tuples(st.sampled_from(sorted(LONGEST)), st.binary(max_size=50))), st.integers(1, 40))
def test_frames_are_reassembled_from_any_pieces(sent: list[tuple[int, bytes]], size: int) -> None:
    stream = b"".join(pack_frame(kind, payload) for kind, payload in sent)
    reader = FrameReader(LONGEST)
    pieces = [stream[index : index + size] for index in range(0, len(stream), size)]
    assert [item for piece in pieces for item in reader.feed(piece)] == sent


@given(st.binary())
def test_random_bytes_are_only_ever_refused(noise: bytes) -> None:
    try:
        for kind, payload in FrameReader(LONGEST).feed(noise):
            assert len(payload) <= LONGEST[kind]
            decode(payload)
    except FrameError:
        pass


def test_a_too_long_frame_is_refused_by_its_header() -> None:
    with pytest.raises(FrameError, match="it has 101 bytes; the limit is 100"):
        list(FrameReader(LONGEST).feed(message_format.HEADER.pack(message_format.OUT, 101)))
    with pytest.raises(FrameError, match=r"it has 64\.0 MB; the limit is 64 MB"):
        pack_frame(message_format.TEXT, bytes(message_format.MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("value", [{1}, math.nan, math.inf, b"x", object(), {(1,): 2}, "\ud800", {"a": ["\udfff"]}])
def test_values_that_json_cannot_hold_are_refused(value: object) -> None:
    with pytest.raises(FrameError):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [b"NaN", b"[Infinity]", b"1e999", b'"\\ud800"', b"[" * 200 + b"]" * 200, b"[" * 100_000, b"\xff", b"", b"9" * 5000],
)
def test_invalid_values_from_the_child_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode(data)


class Scripted:
    """A child that says what it is told to, and then is gone."""

    def __init__(self, sent: Iterable[tuple[int, bytes]]) -> None:
        self._items, self.got = iter(sent), list[bytes]()

    def send(self, data: bytes, deadline: float) -> None:
        self.got.append(data)

    def receive(self, deadline: float) -> tuple[int, bytes]:
        for item in self._items:
            return item
        raise ChildExitedError("its process ended with exit code 1")


DONE = (message_format.DONE, b'{"ended":"completed","dropped":0}')


def conversation(*sent: tuple[int, bytes], limits: Limits | None = None, **functions: Any) -> tuple[Any, list[bytes]]:
    child = Scripted(sent)
    return Exchange(functions, limits or Limits()).run(child, b""), child.got[1:]


def call(*args: object) -> tuple[int, bytes]:
    return message_format.CALL, encode({"name": "worker", "args": args, "kwargs": {}})


def test_the_first_answer_counts_even_if_the_child_dies_of_it() -> None:
    block, _ = conversation((message_format.FINAL, b"0"), (message_format.FINAL, b"1"))
    assert block.answer == FinalAnswer(0) and block.ending == "died" and block.namespace_lost


def test_calls_are_answered_or_fail_in_the_calling_code() -> None:
    def worker(prompt: str) -> object:
        if prompt == "told":
            raise CallError("no key: set it")
        if prompt == "secret":
            raise ValueError("sk-secret")
        return {1} if prompt == "set" else prompt.upper()

    block, got = conversation(call("a"), call("told"), call("secret"), call("set"), DONE, worker=worker)
    assert block.ending == "completed" and block.call_count == 4
    assert [data[5:] for data in got[:3]] == [b'"A"', b"no key: set it", b"worker() failed: ValueError"]
    assert got[3][5:].startswith(b"the result of worker() is not a JSON value")


@pytest.mark.parametrize(
    "sent",
    [
        (message_format.READY, b""),
        (message_format.DONE, b'{"ended":"won","dropped":0}'),
        (message_format.DONE, b'{"ended":"completed","dropped":"many"}'),
        (message_format.CALL, b'{"name":"worker"}'),
        (message_format.CALL, b"[]"),
        (message_format.FINAL, b"{"),
    ],
)
def test_a_frame_out_of_turn_or_shape_ends_the_child(sent: tuple[int, bytes]) -> None:
    block, _ = conversation(sent, DONE)
    assert block.ending == "protocol" and block.namespace_lost and block.answer is None


def test_limits_hold_for_a_child_that_ignores_them() -> None:
    limits = Limits(output_bytes=10, calls=2, received_bytes=1000)
    block, _ = conversation((message_format.OUT, b"x" * 8), (message_format.ERR, b"y" * 8), DONE, limits=limits)
    assert (block.stdout, block.stderr, block.dropped_count) == ("x" * 8, "yy", 6)
    block, _ = conversation(*[call("a")] * 3, limits=limits, worker=str)
    assert block.ending == "limit" and "more than 2 times" in block.error
    block, _ = conversation(*[(message_format.OUT, b"x" * 600)] * 2, limits=limits)
    assert block.ending == "limit" and "1000 bytes" in block.error


def test_invalid_limits_and_missing_backends_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"block_s is 0; expected a number above 0"):
        Limits(block_s=0)
    with pytest.raises(ConfigError, match="the maximum is 64000000"):
        Limits(answer_bytes=10**9)
    bare = Support(X86_64, 0, False, False)
    with pytest.raises(ConfigError, match=r"this machine does not support seccomp.*oven-controller\[monty\]"):
        choose_backend(bare, None, "repl")
    with pytest.raises(ConfigError, match="known backends: landlock"):
        choose_backend(bare, "docker", "repl")
    alone = Support(X86_64, 0, True, True)
    assert alone.backends == ("seccomp", "monty") and choose_backend(alone, None, "repl") == "seccomp"
    with pytest.raises(ConfigError, match="to restrict access to folders"):
        choose_backend(alone, None, "tests")


@settings(max_examples=50)
@given(json_values)
def test_values_survive_a_round_trip(value: object) -> None:
    assert decode(encode(value)) == value
