"""Attacks on a sandbox for model-written Python, by kind: files, network, processes, code, time, memory, the channel.

They need only the interpreter. Many call the kernel by ctypes, so that a module that cannot be imported does not stop
them.
"""

from __future__ import annotations

from typing import Final

from oven_bench.sandbox.attack import Attack

RAW: Final = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""
"""Calls to the C library."""
INTERNET: Final = """
def internet(kind, port, data):
    s = check(libc.socket(2, kind, 0))
    to = struct.pack("<H", 2) + struct.pack(">H", port) + bytes([127, 0, 0, 1]) + bytes(8)
    check(libc.connect(s, to, 16))
    check(libc.send(s, data, len(data), 0))
"""
LOCAL: Final = """
def local(kind, path, data):
    s = check(libc.socket(1, kind, 0))
    to = struct.pack("<H", 1) + path
    check(libc.connect(s, to, len(to)))
    check(libc.send(s, data, len(data), 0))
"""
FRAME: Final = """
import os, struct
def frame(length, data):
    head = struct.pack(T["header"], *T["kind"], length)
    for fd in range(3, 64):
        try:
            os.write(fd, head + data)
        except OSError:
            pass
"""

FILES: Final = (
    Attack("read a file", "secret", 'print(open(T["secret_file"]).read())'),
    Attack("write a file", "marker", 'open(T["marker"], "w").write("x")'),
    Attack(
        "list a folder", "held", 'import os\nprint("HELD" if "secret.txt" in os.listdir(T["folder"]) else "nothing")'
    ),
    Attack("/proc of the parent", "secret", 'import os\nprint(open(f"/proc/{os.getppid()}/environ").read())'),
    Attack(
        "/proc of itself",
        "secret",
        'import os\nprint(open("/proc/self/environ").read(), open(f"/proc/{os.getppid()}/cmdline").read())',
    ),
    Attack(
        "symlink", "marker", 'import os\nos.symlink(T["secret_file"], T["marker"])\nprint(open(T["marker"]).read())'
    ),
    Attack("environment", "secret", "import os\nprint(dict(os.environ))"),
)

NETWORK: Final = (
    Attack("TCP", "knock", RAW + INTERNET + 'internet(1, T["tcp"], T["knock"].encode())'),
    Attack("UDP", "knock", RAW + INTERNET + 'internet(2, T["udp"], T["knock"].encode())'),
    Attack("unix socket", "knock", RAW + LOCAL + 'local(1, T["unix"].encode() + b"\\0", T["knock"].encode())'),
    Attack(
        "DNS",
        "knock",
        RAW
        + INTERNET
        + """
label = T["knock"].encode()
name = bytes([len(label)]) + label + b"\\x04test\\0"
query = struct.pack(">6H", 1, 0x100, 1, 0, 0, 0) + name + struct.pack(">2H", 1, 1)
internet(2, T["udp"], query)
""",
    ),
)

PROCESSES: Final = (
    Attack("subprocess", "marker", 'import subprocess\nsubprocess.run(["touch", T["marker"]], check=True)'),
    Attack(
        "os.fork",
        "marker",
        """
import os
if os.fork() == 0:
    open(T["marker"], "w").close()
    os._exit(0)
os.wait()
""",
    ),
    Attack(
        "fork bomb",
        "held",
        """
import os, time
born = 0
for _ in range(200):
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    born += 1
print("HELD", born)
""",
    ),
    Attack(
        "exec",
        "marker",
        RAW
        + """
words = [T["python"], "-I", "-S", "-c", f"open({T['marker']!r}, 'w')"]
argv = (ctypes.c_char_p * 6)(*[word.encode() for word in words], None)
libc.execv(words[0].encode(), argv)
raise OSError(ctypes.get_errno(), "execv")
""",
    ),
    Attack("kill the parent", "host", "import os\nos.kill(os.getppid(), 9)"),
    Attack(
        "ptrace",
        "victim",
        RAW
        + """
pid = T["victim"]
check(libc.ptrace(16, pid, 0, 0))
check(libc.waitpid(pid, None, 0))
libc.ptrace(8, pid, 0, 0)
""",
    ),
    Attack(
        "signal handler that ignores",
        "hang",
        """
import signal
for number in range(1, 32):
    try:
        signal.signal(number, lambda *a: None)
    except (OSError, ValueError):
        pass
while True:
    pass
""",
    ),
)

CODE: Final = (
    Attack(
        "ctypes to libc",
        "marker",
        RAW + 'fd = check(libc.open(T["marker"].encode(), os.O_CREAT | os.O_WRONLY, 0o600))\nprint(fd)',
    ),
    Attack(
        "import of a C module",
        "held",
        "import _lsprof, mmap\nmmap.mmap(-1, 4096)\nprint('HELD')",
        within_rights=("tests",),
    ),
    Attack(
        "frame walk to the host",
        "secret",
        """
import sys
frame = sys._getframe()
while frame is not None:
    for scope in (frame.f_globals, frame.f_locals):
        print([value for value in scope.values() if isinstance(value, (str, dict))])
    frame = frame.f_back
""",
    ),
    Attack(
        "closure and gc walk",
        "secret",
        """
import gc
print([cell.cell_contents for cell in (worker.__closure__ or ())])
print([one for one in gc.get_objects() if type(one) is dict and "key" in one])
""",
    ),
    Attack(
        "format-string attributes",
        "secret",
        'print("{0.__closure__}".format(worker), "{0.__globals__[os].environ}".format(worker))',
    ),
    Attack(
        "import hooks",
        "secret",
        """
import sys, importlib.util
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "stolen":
            return importlib.util.spec_from_file_location(name, T["secret_file"], loader=Loader())
class Loader:
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        from importlib.machinery import SourceFileLoader
        module.text = SourceFileLoader("stolen", T["secret_file"]).get_data(T["secret_file"]).decode()
sys.meta_path.insert(0, Hook())
import stolen
print(stolen.text)
""",
    ),
    Attack(
        "mmap with exec",
        "held",
        RAW
        + """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
page = libc.mmap(None, 4096, 7, 0x22, -1, 0)
if page in (None, ctypes.c_void_p(-1).value):
    raise OSError("mmap")
machine = b"\\xb8\\x2a\\0\\0\\0\\xc3" if os.uname().machine == "x86_64" else struct.pack("<2I", 0x52800540, 0xD65F03C0)
ctypes.memmove(page, machine, len(machine))
print("HELD" if ctypes.CFUNCTYPE(ctypes.c_int)(page)() == 42 else "nothing")
""",
    ),
)

TIME: Final = (
    Attack("endless loop", "hang", "while True:\n    pass"),
    Attack(
        "loop under except",
        "hang",
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
    ),
    Attack("big power", "hang", "9 ** (9 ** 9)"),
    Attack("regex backtracking", "hang", 'import re\nre.match(r"(a+)+$", "a" * 60 + "b")'),
    Attack("sleep past the deadline", "hang", "import time\ntime.sleep(3600)"),
)

MEMORY: Final = (
    Attack("growing list", "held", "kept = []\nfor _ in range(6):\n    kept.append(bytearray(10**8))\nprint('HELD')"),
    Attack("one huge string", "held", "text = 'x' * (6 * 10**8)\nprint('HELD')"),
    Attack("output flood", "flood", "for _ in range(200):\n    print('x' * 100_000)"),
    Attack(
        "thread storm",
        "held",
        """
import _thread, time
for _ in range(1000):
    _thread.start_new_thread(time.sleep, (30,))
print("HELD")
""",
    ),
)

CHANNEL: Final = (
    Attack(
        "open-descriptor reuse",
        "host",
        """
import os
for fd in range(3, 64):
    try:
        os.close(fd)
    except OSError:
        pass
""",
    ),
    Attack("oversized frame", "host", FRAME + "frame(T['too_long'], b'x')"),
    Attack("malformed frame", "host", FRAME + "frame(4, b'\\xff\\xfe\\xfd\\xfc')"),
    Attack(
        "pickled frame",
        "marker",
        FRAME + "data = b'c__builtin__\\nopen\\n(V' + T['marker'].encode() + b'\\nVw\\ntR.'\nframe(len(data), data)",
    ),
    Attack("FINAL swallowed", "answer", "try:\n    FINAL(0)\nexcept:\n    pass"),
    Attack("atexit", "marker", 'import atexit\natexit.register(lambda: open(T["marker"], "w"))'),
)

KINDS: Final = (*FILES, *NETWORK, *PROCESSES, *CODE, *TIME, *MEMORY, *CHANNEL)
"""One attack of each kind that the first prototype was tested with."""
