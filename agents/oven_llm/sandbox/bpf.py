"""Assembles rules about system calls into a classic BPF program for seccomp (linux/filter.h).

A program reads the call's number, its calling convention and six 64-bit arguments (struct seccomp_data, little-endian),
and returns an action. Rules are checked in order. A call without a rule is refused with EPERM. System call numbers are
from asm/unistd_64.h and asm-generic/unistd.h."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

_CALLS: Final = """
read 0 63, write 1 64, close 3 57, fstat 5 80, lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, ioctl 16 29, pread64 17 67, pwrite64 18 68,
readv 19 65, writev 20 66, sched_yield 24 124, mremap 25 216, madvise 28 233, dup 32 23, nanosleep 35 101,
getpid 39 172, sendfile 40 71, socket 41 198, connect 42 203, sendto 44 206, recvfrom 45 207, shutdown 48 210,
getsockname 51 204, getpeername 52 205, socketpair 53 199, getsockopt 55 209, clone 56 220, execve 59 221, exit 60 93,
kill 62 129, uname 63 160, fcntl 72 25, flock 73 32, fsync 74 82, fdatasync 75 83, ftruncate 77 46, getcwd 79 17,
chdir 80 49, fchdir 81 50, umask 95 166, gettimeofday 96 169, getrusage 98 165, sysinfo 99 179, times 100 153,
ptrace 101 117, getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177, getppid 110 173, capset 126 91,
sigaltstack 131 132, gettid 186 178, futex 202 98, sched_getaffinity 204 123, getdents64 217 61,
restart_syscall 219 128, fadvise64 221 223, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
exit_group 231 94, epoll_ctl 233 21, openat 257 56, mkdirat 258 34, newfstatat 262 79, unlinkat 263 35,
renameat 264 38, readlinkat 267 78, faccessat 269 48, pselect6 270 72, ppoll 271 73, set_robust_list 273 99,
epoll_pwait 281 22, eventfd2 290 19, epoll_create1 291 20, dup3 292 24, pipe2 293 59, prlimit64 302 261,
renameat2 316 276, seccomp 317 277, getrandom 318 278, membarrier 324 283, copy_file_range 326 285, statx 332 291,
rseq 334 293, clone3 435 435, faccessat2 439 439, landlock_create_ruleset 444 444, landlock_add_rule 445 445,
landlock_restrict_self 446 446
"""
"""Names of system calls, with their numbers on x86_64 and on aarch64."""
_X86_CALLS: Final = """
open 2, stat 4, lstat 6, poll 7, access 21, pipe 22, select 23, dup2 33, rename 82, mkdir 83, rmdir 84, unlink 87,
readlink 89, time 201, epoll_wait 232
"""
"""System calls that only x86_64 has."""


def _parse_numbers(text: str, column: int) -> dict[str, int]:
    """Return the numbers in one column by call name."""
    rows = (row.split() for row in text.replace("\n", " ").split(","))
    return {row[0]: int(row[column]) for row in rows}


@dataclass(frozen=True)
class Machine:
    """The system calls of a processor architecture."""

    name: str
    audit_arch: int
    """AUDIT_ARCH_… from linux/audit.h: the calling convention that a filter sees."""
    numbers: Mapping[str, int]
    """Numbers of system calls by name."""
    first_x32_number: int | None = None
    """First number of the calling convention x32, which has the same `audit_arch` as x86_64; None on other machines."""


X86_64: Final = Machine("x86_64", 0xC000003E, _parse_numbers(_CALLS, 1) | _parse_numbers(_X86_CALLS, 1), 0x40000000)
AARCH64: Final = Machine("aarch64", 0xC00000B7, _parse_numbers(_CALLS, 2))
MACHINES: Final = {machine.name: machine for machine in (X86_64, AARCH64)}
"""Supported machines by the name that `platform.machine()` returns."""

LOAD: Final = 0x20
"""BPF_LD | BPF_W | BPF_ABS: load a word of seccomp_data into the accumulator."""
EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x15, 0x35, 0x45, 0x54, 0x06
"""BPF_JMP with JEQ, JGE and JSET, BPF_ALU with AND, and BPF_RET. Each uses the instruction's constant."""

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
ERRNO: Final = 0x00050000
"""SECCOMP_RET_… from linux/seccomp.h. The error number is added to ERRNO."""
EPERM, ENOSYS = 1, 38

NUMBER_OFFSET, CONVENTION_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
"""Offsets in struct seccomp_data."""
MAX_INSTRUCTIONS: Final = 4096
"""BPF_MAXINSNS, the kernel's limit."""

Test = Literal["one_of", "none_of", "all_bits", "no_bits", "not_all_bits"]


@dataclass(frozen=True)
class Condition:
    """A condition on an argument of a call. `one_of` compares all 64 bits with the values. The other tests use the low
    32 bits, which contain descriptors and flags. `none_of` excludes the values. The tests for bits have a mask as their
    only value, and require that all, none, or not all of its bits are set."""

    index: int
    test: Test
    values: tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """A rule that allows a call if all conditions are met. Otherwise the call is refused with `errno`."""

    call: str
    conditions: tuple[Condition, ...] = ()
    errno: int = EPERM
    allowed: bool = True
    """If False, the call is always refused with `errno`."""


Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, and constant. A jump is the number of instructions to skip."""


def assemble_filter(machine: Machine, rules: Sequence[Rule]) -> bytes:
    """Return the filter as an array of struct sock_filter. Rules for calls that the machine lacks are skipped. Raises
    ValueError if the filter is too long."""
    code: list[Instruction] = [
        (LOAD, 0, 0, CONVENTION_OFFSET),
        (EQUAL, 1, 0, machine.audit_arch),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_OFFSET),
    ]
    if machine.first_x32_number is not None:
        code += [(AT_LEAST, 0, 1, machine.first_x32_number), (RETURN, 0, 0, ERRNO | EPERM)]  # refuse all x32 calls
    for rule in rules:
        if (number := machine.numbers.get(rule.call)) is not None:
            body = _assemble_rule(rule)
            code += [(EQUAL, 0, len(body), number), *body]
    code.append((RETURN, 0, 0, ERRNO | EPERM))
    if len(code) > MAX_INSTRUCTIONS:
        raise ValueError(f"the filter has {len(code)} instructions; the kernel accepts at most {MAX_INSTRUCTIONS}")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _assemble_rule(rule: Rule) -> list[Instruction]:
    refuse: Instruction = (RETURN, 0, 0, ERRNO | rule.errno)
    if not rule.allowed:
        return [refuse]
    body = [instruction for condition in rule.conditions for instruction in _assemble_condition(condition, refuse)]
    return [*body, (RETURN, 0, 0, ALLOW)]


def _assemble_condition(condition: Condition, refuse: Instruction) -> list[Instruction]:
    """Return instructions that fall through if the condition is met, and otherwise execute `refuse`."""
    low_offset = ARGUMENTS_OFFSET + 8 * condition.index
    load_low: Instruction = (LOAD, 0, 0, low_offset)
    load_high: Instruction = (LOAD, 0, 0, low_offset + 4)
    if condition.test in ("one_of", "none_of"):
        last = len(condition.values) - 1
        if condition.test == "one_of":  # an equal value skips the tests after it and `refuse`
            tests = [(EQUAL, last - index + 1, 0, value) for index, value in enumerate(condition.values)]
            return [load_high, (EQUAL, 1, 0, 0), refuse, load_low, *tests, refuse]
        # An equal value skips the tests after it and reaches `refuse`. If the last value differs, `refuse` is skipped.
        tests = [(EQUAL, last - index, int(index == last), value) for index, value in enumerate(condition.values)]
        return [load_low, *tests, refuse]
    (mask,) = condition.values
    if condition.test == "no_bits":
        return [load_low, (ANY_BIT, 0, 1, mask), refuse]
    if condition.test == "all_bits":
        return [load_low, (AND, 0, 0, mask), (EQUAL, 1, 0, mask), refuse]
    return [load_low, (AND, 0, 0, mask), (EQUAL, 0, 1, mask), refuse]
