"""Which system calls code in the sandbox may make: pure tables, one for each profile.

What is not named is refused with EPERM, which Python shows as PermissionError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oven_llm.sandbox.bpf import ENOSYS, Argument, Rule

PROT_WRITE, PROT_EXEC = 0x2, 0x4
"""Of mmap and mprotect (asm-generic/mman-common.h)."""
MAP_ANONYMOUS: Final = 0x20
CLONE_THREAD: Final = 0x10000
"""Of clone (linux/sched.h): a thread of this process, no process."""
AF_UNIX: Final = 1
DUPLICATE_AND_FLAGS: Final = (0, 1, 2, 3, 4, 1030)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. Not F_SETOWN, by which root could signal others."""
TERMINAL_AND_FLAGS: Final = (0x5401, 0x5421, 0x5450, 0x5451)
"""TCGETS (for isatty), FIONBIO, FIONCLEX, FIOCLEX: what files need. Not TIOCSTI, which types into a terminal."""

RUNNING: Final = (
    "futex", "clock_gettime", "brk", "munmap", "mremap", "madvise", "getrandom", "clock_nanosleep", "nanosleep",
    "gettimeofday", "time", "clock_getres", "sched_yield", "sched_getaffinity", "getpid", "gettid", "rt_sigreturn",
    "restart_syscall", "exit", "exit_group",
)  # fmt: skip
"""What an interpreter needs that computes, waits, and touches nothing: memory, clocks, locks and entropy."""
FILES: Final = (
    "openat", "open", "newfstatat", "stat", "lstat", "statx", "fstat", "lseek", "getdents64", "readlinkat", "readlink",
    "getcwd", "faccessat", "faccessat2", "access", "mkdirat", "mkdir", "rmdir", "unlinkat", "unlink", "renameat",
    "renameat2", "rename", "ftruncate", "fsync", "fdatasync", "flock", "fadvise64", "pread64", "pwrite64", "readv",
    "writev", "copy_file_range", "sendfile", "chdir", "fchdir", "umask", "dup", "pipe2", "pipe",
)  # fmt: skip
"""For `tests`, where Landlock decides about paths. Not what Landlock does not look at: modes, owners, times,
attributes, truncation by path; nor links."""
WAITING: Final = (
    "poll", "ppoll", "select", "pselect6", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "eventfd2",
    "recvfrom", "shutdown", "getsockopt", "getsockname", "getpeername",
)  # fmt: skip
"""For asyncio in `tests`, over pairs of sockets: none can be made that reaches another process."""
PROCESS_FACTS: Final = (
    "uname", "getuid", "geteuid", "getgid", "getegid", "getppid", "sysinfo", "getrusage", "times", "rseq",
    "set_robust_list", "membarrier", "rt_sigaction", "rt_sigprocmask", "sigaltstack",
)  # fmt: skip
"""Harmless questions, and what threads and faulthandler set up in their own process."""


@dataclass(frozen=True)
class Channel:
    """The child's descriptors: what it reads from and writes to the host, and the one that ends it with the host."""

    requests: int
    replies: int
    lifeline: int

    @property
    def all(self) -> tuple[int, ...]:
        return (self.requests, self.replies, self.lifeline)


def _same(*calls: str) -> tuple[Rule, ...]:
    return tuple(Rule(call) for call in calls)


def repl_rules(channel: Channel) -> tuple[Rule, ...]:
    """No files, sockets, threads, processes, signals or executable memory: frames to the host, and computing."""
    no_code = Argument(2, "without", (PROT_EXEC,))
    return (
        Rule("read", (Argument(0, "one_of", (channel.requests,)),)),
        Rule("write", (Argument(0, "one_of", (1, 2, channel.replies)),)),
        Rule("mmap", (no_code, Argument(3, "with", (MAP_ANONYMOUS,)))),
        Rule("mprotect", (no_code,)),
        *_same(*RUNNING),
    )


def folder_rules(channel: Channel) -> tuple[Rule, ...]:
    """Files as far as Landlock lets them, threads and socket pairs; no processes, no network, no signals to others."""
    not_the_channel = Argument(0, "none_of", channel.all)
    not_onto_the_channel = Argument(1, "none_of", channel.all)
    return (
        Rule("read"),
        Rule("write"),
        Rule("close", (not_the_channel,)),
        Rule("mmap", (Argument(2, "not_all", (PROT_WRITE | PROT_EXEC,)),)),  # shared objects are executable, not both
        Rule("mprotect", (Argument(2, "without", (PROT_EXEC,)),)),
        Rule("dup2", (not_onto_the_channel,)),
        Rule("dup3", (not_onto_the_channel,)),
        Rule("fcntl", (not_the_channel, Argument(1, "one_of", DUPLICATE_AND_FLAGS))),
        Rule("ioctl", (Argument(1, "one_of", TERMINAL_AND_FLAGS),)),
        Rule("clone", (Argument(0, "with", (CLONE_THREAD,)),)),
        Rule("clone3", errno=ENOSYS, allowed=False),  # its flags are out of sight; the C library falls back to clone
        Rule("socketpair", (Argument(0, "one_of", (AF_UNIX,)), Argument(1, "one_of", STREAMS))),
        Rule("sendto", (Argument(4, "one_of", (0,)),)),  # without an address
        Rule("prlimit64", (Argument(0, "one_of", (0,)), Argument(2, "one_of", (0,)))),  # reading its own limits
        *_same(*RUNNING, *FILES, *WAITING, *PROCESS_FACTS),
    )


STREAMS: Final = tuple(1 | flags for flags in (0, 0x800, 0x80000, 0x80800))
"""SOCK_STREAM with SOCK_NONBLOCK and SOCK_CLOEXEC: a datagram pair could be sent from to any other socket's address."""
