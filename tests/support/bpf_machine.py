"""An interpreter of classic BPF, as the kernel runs a seccomp filter."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from oven_llm.sandbox import bpf


def verdict(program: bytes, number: int, convention: int, arguments: Sequence[int]) -> int:
    """Return the filter's verdict on a call with six arguments."""
    data = struct.pack("<iIQ6Q", number, convention, 0, *arguments)
    code = list(struct.iter_unpack("<HBBI", program))
    position = accumulator = 0
    while True:
        what, yes, no, constant = code[position]
        position += 1
        if what == bpf.LOAD:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif what == bpf.AND:
            accumulator &= constant
        elif what == bpf.RETURN:
            return int(constant)
        else:
            holds = {
                bpf.EQUAL: accumulator == constant,
                bpf.AT_LEAST: accumulator >= constant,
                bpf.ANY_BIT: bool(accumulator & constant),
            }[what]
            position += yes if holds else no
