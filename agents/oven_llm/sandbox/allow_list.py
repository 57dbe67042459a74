"""The system calls that code in the sandbox may make: one table per profile.

Any other call is refused with EPERM, which Python raises as PermissionError.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oven_llm.sandbox.bpf import ENOSYS, Argument, Rule

PROT_WRITE, PROT_EXEC = 0x2, 0x4
"""Flags of mmap and mprotect (asm-generic/mman-common.h)."""
MAP_ANONYMOUS: Final = 0x20
CLONE_THREAD: Final = 0x10000
"""Flag of clone (linux/sched.h): a thread of this process instead of a new process."""
AF_UNIX: Final = 1
STREAMS: Final = tuple(1 | flags for flags in (0, 0x800, 0x80000, 0x80800))
"""SOCK_STREAM with SOCK_NONBLOCK and SOCK_CLOEXEC. A datagram socket could send to the address of any other socket."""
DUPLICATE_AND_FLAGS: Final = (0, 1, 2, 3, 4, 1030)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. With F_SETOWN root could signal other processes."""
TERMINAL_AND_FLAGS: Final = (0x5401, 0x5421, 0x5450, 0x5451)
"""TCGETS (for isatty), FIONBIO, FIONCLEX, FIOCLEX, which files need. Not TIOCSTI, which types into a terminal."""

RUNNING: Final = (
    "futex", "clock_gettime", "brk", "munmap", "mremap", "madvise", "getrandom", "clock_nanosleep", "nanosleep",
    "gettimeofday", "time", "clock_getres", "sched_yield", "sched_getaffinity", "getpid", "gettid", "rt_sigreturn",
    "restart_syscall", "exit", "exit_group",
)  # fmt: skip
"""Calls that an interpreter needs to compute and wait: memory, clocks, locks and entropy."""
FILES: Final = (
    "openat", "open", "newfstatat", "stat", "lstat", "statx", "fstat", "lseek", "getdents64", "readlinkat", "readlink",
    "getcwd", "faccessat", "faccessat2", "access", "mkdirat", "mkdir", "rmdir", "unlinkat", "unlink", "renameat",
    "renameat2", "rename", "ftruncate", "fsync", "fdatasync", "flock", "fadvise64", "pread64", "pwrite64", "readv",
    "writev", "copy_file_range", "sendfile", "chdir", "fchdir", "umask", "dup", "pipe2", "pipe",
)  # fmt: skip
"""Calls for `tests`, where Landlock restricts the paths. Without calls that Landlock does not check (modes, owners,
times, attributes, truncation by path) and without links."""
WAITING: Final = (
    "poll", "ppoll", "select", "pselect6", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "eventfd2",
    "recvfrom", "shutdown", "getsockopt", "getsockname", "getpeername",
)  # fmt: skip
"""Calls for asyncio in `tests`, over pairs of sockets. No socket can be made that reaches another process."""
PROCESS_FACTS: Final = (
    "uname", "getuid", "geteuid", "getgid", "getegid", "getppid", "sysinfo", "getrusage", "times", "rseq",
    "set_robust_list", "membarrier", "rt_sigaction", "rt_sigprocmask", "sigaltstack",
)  # fmt: skip
"""Harmless queries, and calls by which threads and faulthandler set up their own process."""


class Descriptors(NamedTuple):
    """The child's file descriptors for requests and replies, and one that kills it when the host exits."""

    requests: int
    replies: int
    lifeline: int


def _allow(*calls: str) -> tuple[Rule, ...]:
    return tuple(Rule(call) for call in calls)


def repl_rules(descriptors: Descriptors) -> tuple[Rule, ...]:
    """Return the rules of `repl`: frames to the host and computing, and nothing else."""
    no_code = Argument(2, "without", (PROT_EXEC,))
    return (
        Rule("read", (Argument(0, "one_of", (descriptors.requests,)),)),
        Rule("write", (Argument(0, "one_of", (1, 2, descriptors.replies)),)),
        Rule("mmap", (no_code, Argument(3, "with", (MAP_ANONYMOUS,)))),
        Rule("mprotect", (no_code,)),
        *_allow(*RUNNING),
    )


def folder_rules(descriptors: Descriptors) -> tuple[Rule, ...]:
    """Return the rules of `tests`: files as far as Landlock allows them, threads and socket pairs. No processes, no
    network, no signals to others."""
    not_ours = Argument(0, "none_of", descriptors)
    not_onto_ours = Argument(1, "none_of", descriptors)
    return (
        Rule("read"),
        Rule("write"),
        Rule("close", (not_ours,)),
        Rule("mmap", (Argument(2, "not_all", (PROT_WRITE | PROT_EXEC,)),)),  # shared objects are executable
        Rule("mprotect", (Argument(2, "without", (PROT_EXEC,)),)),
        Rule("dup2", (not_onto_ours,)),
        Rule("dup3", (not_onto_ours,)),
        Rule("fcntl", (not_ours, Argument(1, "one_of", DUPLICATE_AND_FLAGS))),
        Rule("ioctl", (Argument(1, "one_of", TERMINAL_AND_FLAGS),)),
        Rule("clone", (Argument(0, "with", (CLONE_THREAD,)),)),
        Rule("clone3", errno=ENOSYS, allowed=False),  # a filter cannot see its flags; the C library falls back to clone
        Rule("socketpair", (Argument(0, "one_of", (AF_UNIX,)), Argument(1, "one_of", STREAMS))),
        Rule("sendto", (Argument(4, "one_of", (0,)),)),  # without an address
        Rule("prlimit64", (Argument(0, "one_of", (0,)), Argument(2, "one_of", (0,)))),  # it may read its own limits
        *_allow(*RUNNING, *FILES, *WAITING, *PROCESS_FACTS),
    )
