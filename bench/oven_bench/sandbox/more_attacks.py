"""Further attacks: ways around the file rules, other system calls, crashes, and floods of data."""

from __future__ import annotations

from typing import Final

from oven_bench.sandbox.attack import Attack
from oven_bench.sandbox.known_attacks import RAW

CALL: Final = (
    RAW
    + """
X86 = T["machine"] == "x86_64"
libc.syscall.restype = ctypes.c_long
def call(x86, arm, *words):
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in words]
    return check(libc.syscall(ctypes.c_long(x86 if X86 else arm), *words))
"""
)

AROUND_FILES: Final = (
    Attack(
        "raw openat",
        "secret",
        CALL
        + """
fd = call(257, 56, -100, T["secret_file"].encode(), 0, 0)
data = ctypes.create_string_buffer(64)
libc.read(fd, data, 64)
print(data.value.decode())
""",
    ),
    Attack("a standard module that reads", "secret", 'import linecache\nprint(linecache.getlines(T["secret_file"]))'),
    Attack(
        "a file by its handle",
        "secret",
        CALL
        + """
handle = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0), 136)
mount = ctypes.c_int()
call(303, 264, -100, T["secret_file"].encode(), handle, ctypes.byref(mount), 0)
root = call(257, 56, -100, b"/", 0, 0)
fd = call(304, 265, root, handle, 0)
data = ctypes.create_string_buffer(64)
libc.read(fd, data, 64)
print(data.value.decode())
""",
    ),
    Attack("hard link", "marker", 'import os\nos.link(T["secret_file"], T["marker"])'),
    Attack("change of mode", "damage", 'import os\nos.chmod(T["secret_file"], 0o777)'),
    Attack("removal", "damage", 'import os\nos.unlink(T["secret_file"])'),
    Attack("truncation", "damage", 'import os\nos.truncate(T["secret_file"], 0)'),
    Attack("renaming", "marker", 'import os\nos.rename(T["secret_file"], T["marker"])'),
    Attack("a named pipe", "marker", 'import os\nos.mkfifo(T["marker"])'),
    Attack("another root", "held", CALL + 'call(161, 51, T["folder"].encode())\nprint("HELD")'),
)

DOORS: Final = (
    Attack(
        "io_uring",
        "held",
        CALL + 'parameters = ctypes.create_string_buffer(120)\ncall(425, 425, 8, parameters)\nprint("HELD")',
    ),
    Attack(
        "a program from memory",
        "marker",
        CALL
        + """
fd = call(319, 279, b"x", 0)
script = f"#!/bin/sh\\n: > {T['marker']}\\n".encode()
os.write(fd, script)
argv = (ctypes.c_char_p * 2)(b"x", None)
call(322, 281, fd, b"", argv, argv, 0x1000)
""",
    ),
    Attack(
        "a signal by process descriptor",
        "victim",
        CALL + 'fd = call(434, 434, T["victim"], 0)\ncall(424, 424, fd, 9, 0, 0)',
    ),
    Attack(
        "a signal as a file's owner",
        "victim",
        CALL
        + """
ends = (ctypes.c_int * 2)()
call(293, 59, ends, 0)
libc.fcntl(ends[0], 8, T["victim"])
check(libc.fcntl(ends[0], 10, 9))
check(libc.fcntl(ends[0], 4, 0o20000))
os.write(ends[1], b"x")
""",
    ),
    Attack("user namespaces", "held", CALL + 'call(272, 97, 0x10000000)\nprint("HELD")'),
    Attack("keyring", "held", CALL + 'call(248, 217, b"user", b"oven-bench", b"x", 1, -2)\nprint("HELD")'),
    Attack("netlink socket", "held", CALL + 'call(41, 198, 16, 3, 0)\nprint("HELD")'),
    Attack(
        "abstract unix socket",
        "knock",
        RAW
        + """
s = check(libc.socket(1, 1, 0))
to = struct.pack("<H", 1) + b"\\0" + T["abstract"].encode()
check(libc.connect(s, to, len(to)))
check(libc.send(s, T["knock"].encode(), 32, 0))
""",
    ),
    Attack(
        "a datagram from a socket pair",
        "knock",
        RAW
        + """
ends = (ctypes.c_int * 2)()
check(libc.socketpair(1, 2, 0, ends))
to = struct.pack("<H", 1) + T["datagram"].encode() + b"\\0"
check(libc.sendto(ends[0], T["knock"].encode(), 32, 0, to, len(to)))
""",
    ),
    Attack(
        "higher limits",
        "held",
        """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9, 4 * 10**9))
kept = bytearray(6 * 10**8)
print("HELD")
""",
    ),
    Attack("priority", "held", "import os\nos.setpriority(os.PRIO_PROCESS, 0, -10)\nprint('HELD')"),
    Attack(
        "posix_spawn",
        "marker",
        """
import os
code = f"open({T['marker']!r}, 'w')"
os.waitpid(os.posix_spawn(T["python"], [T["python"], "-I", "-S", "-c", code], {}), 0)
""",
    ),
    Attack(
        "shared memory",
        "held",
        CALL + 'segment = call(29, 194, 0, 4096, 0o1600)\nlibc.shmctl(segment, 0, None)\nprint("HELD")',
    ),
    Attack("the group's end", "host", "import os\nos.kill(0, 9)"),
)

CRASHES: Final = (
    Attack(
        "broken bytecode",
        "host",
        """
def f():
    pass
f.__code__ = f.__code__.replace(co_code=bytes([100, 255] * 40), co_consts=())
f()
""",
    ),
    Attack(
        "stack overflow",
        "host",
        """
import sys
sys.setrecursionlimit(10**9)
def down(n):
    return [*map(down, [n + 1])]
down(0)
""",
    ),
    Attack("a null pointer", "host", "import ctypes\nctypes.string_at(0)"),
    Attack("sudden exit", "host", "import os\nos._exit(0)"),
)

FLOODS: Final = (
    Attack("endless calls", "hang", "while True:\n    worker('x')"),
    Attack("a traceback of megabytes", "flood", "raise ValueError('x' * 20_000_000)"),
    Attack("an answer of megabytes", "flood", "FINAL('x' * 20_000_000)"),
    Attack("output past the stream", "flood", "import os\nfor _ in range(200):\n    os.write(1, b'x' * 100_000)"),
    Attack(
        "a full disk",
        "marker",
        'with open(T["marker"], "wb") as file:\n    for _ in range(20):\n        file.write(bytes(1_000_000))',
    ),
)

OWN: Final = (*AROUND_FILES, *DOORS, *CRASHES, *FLOODS)
"""All attacks of this file."""
