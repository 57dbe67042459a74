"""Lists the system calls that sandboxed code may make, for each profile.

Any other call is refused with EPERM, which Python raises as PermissionError."""

from __future__ import annotations

from typing import Final, NamedTuple

from oven_llm.sandbox.bpf import ENOSYS, Condition, Rule

PROT_WRITE, PROT_EXEC = 0x2, 0x4
"""Flags of mmap and mprotect (asm-generic/mman-common.h)."""
MAP_ANONYMOUS: Final = 0x20
CLONE_THREAD: Final = 0x10000
"""Flag of clone (linux/sched.h) that starts a thread instead of a new process."""
AF_UNIX: Final = 1
STREAM_TYPES: Final = tuple(1 | flags for flags in (0, 0x800, 0x80000, 0x80800))
"""SOCK_STREAM, with or without SOCK_NONBLOCK and SOCK_CLOEXEC. A datagram socket could send to any other socket."""
FCNTL_COMMANDS: Final = (0, 1, 2, 3, 4, 1030)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. With F_SETOWN, root could signal other processes."""
IOCTL_REQUESTS: Final = (0x5401, 0x5421, 0x5450, 0x5451)
"""TCGETS (for isatty), FIONBIO, FIONCLEX and FIOCLEX. TIOCSTI is not allowed, because it types into a terminal."""

COMPUTING_CALLS: Final = (
    "futex", "clock_gettime", "brk", "munmap", "mremap", "madvise", "getrandom", "clock_nanosleep", "nanosleep",
    "gettimeofday", "time", "clock_getres", "sched_yield", "sched_getaffinity", "getpid", "gettid", "rt_sigreturn",
    "restart_syscall", "exit", "exit_group",
)  # fmt: skip
"""Calls that an interpreter needs to compute and wait: memory, clocks, locks and entropy."""
FILE_CALLS: Final = (
    "openat", "open", "newfstatat", "stat", "lstat", "statx", "fstat", "lseek", "getdents64", "readlinkat", "readlink",
    "getcwd", "faccessat", "faccessat2", "access", "mkdirat", "mkdir", "rmdir", "unlinkat", "unlink", "renameat",
    "renameat2", "rename", "ftruncate", "fsync", "fdatasync", "flock", "fadvise64", "pread64", "pwrite64", "readv",
    "writev", "copy_file_range", "sendfile", "chdir", "fchdir", "umask", "dup", "pipe2", "pipe",
)  # fmt: skip
"""Calls for files in the profile `tests`, where Landlock restricts the paths. Excluded are calls that create links and
calls that Landlock does not check, which change modes, owners, times or attributes, or truncate by path."""
WAITING_CALLS: Final = (
    "poll", "ppoll", "select", "pselect6", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "eventfd2",
    "recvfrom", "shutdown", "getsockopt", "getsockname", "getpeername",
)  # fmt: skip
"""Calls for asyncio over socket pairs in the profile `tests`. No socket can reach another process."""
PROCESS_CALLS: Final = (
    "uname", "getuid", "geteuid", "getgid", "getegid", "getppid", "sysinfo", "getrusage", "times", "rseq",
    "set_robust_list", "membarrier", "rt_sigaction", "rt_sigprocmask", "sigaltstack",
)  # fmt: skip
"""Harmless queries, and calls that threads and faulthandler need to set up signals and their own state."""


class Descriptors(NamedTuple):
    """The child's file descriptors. When the host exits, `lifeline` closes and the kernel kills the child."""

    requests: int
    replies: int
    lifeline: int


def _allow(*calls: str) -> tuple[Rule, ...]:
    return tuple(Rule(call) for call in calls)


def rules_for_repl(descriptors: Descriptors) -> tuple[Rule, ...]:
    """Return the rules of the profile `repl`, which allow only computing and frames to and from the host. A condition
    starts with the index of the call's argument to which it applies."""
    not_executable = Condition(2, "no_bits", (PROT_EXEC,))
    return (
        Rule("read", (Condition(0, "one_of", (descriptors.requests,)),)),
        Rule("write", (Condition(0, "one_of", (1, 2, descriptors.replies)),)),
        Rule("mmap", (not_executable, Condition(3, "all_bits", (MAP_ANONYMOUS,)))),
        Rule("mprotect", (not_executable,)),
        *_allow(*COMPUTING_CALLS),
    )


def rules_for_tests(descriptors: Descriptors) -> tuple[Rule, ...]:
    """Return the rules of the profile `tests`, which allow files (restricted by Landlock), threads and socket pairs.
    New processes, the network and signals to other processes are not allowed."""
    first_not_reserved = Condition(0, "none_of", descriptors)
    second_not_reserved = Condition(1, "none_of", descriptors)
    return (
        Rule("read"),
        Rule("write"),
        Rule("close", (first_not_reserved,)),
        Rule("mmap", (Condition(2, "not_all_bits", (PROT_WRITE | PROT_EXEC,)),)),  # shared libraries are executable
        Rule("mprotect", (Condition(2, "no_bits", (PROT_EXEC,)),)),
        Rule("dup2", (second_not_reserved,)),
        Rule("dup3", (second_not_reserved,)),
        Rule("fcntl", (first_not_reserved, Condition(1, "one_of", FCNTL_COMMANDS))),
        Rule("ioctl", (Condition(1, "one_of", IOCTL_REQUESTS),)),
        Rule("clone", (Condition(0, "all_bits", (CLONE_THREAD,)),)),
        Rule("clone3", errno=ENOSYS, allowed=False),  # a filter cannot see its flags; the C library falls back to clone
        Rule("socketpair", (Condition(0, "one_of", (AF_UNIX,)), Condition(1, "one_of", STREAM_TYPES))),
        Rule("sendto", (Condition(4, "one_of", (0,)),)),  # no address, so only to a connected socket
        Rule("prlimit64", (Condition(0, "one_of", (0,)), Condition(2, "one_of", (0,)))),  # may only read its own limits
        *_allow(*COMPUTING_CALLS, *FILE_CALLS, *WAITING_CALLS, *PROCESS_CALLS),
    )
