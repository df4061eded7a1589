"""A program of the sandbox: tries what the table of `docs/security.md` promises, and prints the rows that it got past.

`GIVEN` is filled in by the runner: the process of a victim of the same user, a folder of that user, a server's port.
"""

import ctypes
import fcntl
import gc
import json
import mmap
import os
import re
import resource
import signal
import socket
import sys
import time

GIVEN: dict = {}
VICTIM, FOLDER = GIVEN["victim"], GIVEN["folder"]
libc = ctypes.CDLL(None, use_errno=True)
SECRET = re.compile(rb"PLANTED-\d{6,}")
F_GETSIG, NEW_USERS, GET_DUMPABLE, SIGNAL_AT_END_OF_PARENT, CLOCK_OF_VICTIM = 11, 0x10000000, 3, 1, (~VICTIM << 3) | 2


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def touch(path, mode="r+b"):
    open(path, mode, buffering=0).close()


def others():
    """Processes that are the zygote, a slot or a program, by their command line."""
    me = open("/proc/self/cmdline", "rb").read()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if open(f"/proc/{name}/cmdline", "rb").read() == me:
                    yield name
            except OSError:
                pass


def any_of(paths):
    for path in paths:
        try:
            touch(path)
        except OSError:
            continue
        return
    raise PermissionError


def signal_noted_on_input():
    if fcntl.fcntl(0, F_GETSIG) == 0:
        raise FileNotFoundError


def is_open():
    if libc.prctl(GET_DUMPABLE, 0, 0, 0, 0) == 0:
        raise PermissionError


def has_privileges():
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    check(libc.capget(header, sets))
    if not any(sets):
        raise PermissionError


def pages():
    """What this process can read near its objects and in the C library's heap."""
    libc.sbrk.restype = ctypes.c_void_p
    end, step = libc.sbrk(0), 1 << 16
    places = {id(one) // step for one in gc.get_objects()} | set(range(max(0, end - (32 << 20)) // step, end // step))
    places |= {place + near for place in list(places) for near in range(-4, 5)}
    read, write = os.pipe()
    libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    for place in sorted(places):
        for at in range(place * step, (place + 1) * step, mmap.PAGESIZE):
            if libc.write(write, at, mmap.PAGESIZE) == mmap.PAGESIZE:
                yield os.read(read, mmap.PAGESIZE)


def earlier_in_memory():
    if not SECRET.search(b"".join(pages())):
        raise PermissionError


def earlier_in_frames():
    frame = sys._getframe()
    while frame is not None:
        if SECRET.search(repr(frame.f_locals).encode()):
            return
        frame = frame.f_back
    raise PermissionError


def secrets_of_victim():
    if b"MY_API_KEY" not in open(f"/proc/{VICTIM}/environ", "rb").read():
        raise PermissionError


def secrets_of_its_own():
    """Its first environment can still be seen on its stack."""
    if "MY_API_KEY" not in os.environ and b"MY_API_KEY" not in open("/proc/self/environ", "rb").read():
        raise PermissionError


def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def fill():
    """`scratch_mb` is 4, and `max_file_mb` 1."""
    for number in range(8):
        with open(str(number), "wb") as file:
            file.write(bytes(1 << 20))
    for number in range(8):
        os.unlink(str(number))


def see_victim():
    if str(VICTIM) not in os.listdir("/proc"):
        raise PermissionError


def unix_server():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{FOLDER}/server")


def from_a_pair(use):
    """Pairs are allowed; to somebody else with one of them is not."""
    for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM):
        try:
            use(end, "\0nobody-listens-here")
        except ConnectionRefusedError:
            pass  # allowed, only nobody is there


ROWS = {
    "see the environment": [secrets_of_victim],
    "see its own environment": [secrets_of_its_own],
    "read or change the memory of your other": [
        lambda: touch(f"/proc/{VICTIM}/mem"),
        lambda: touch(f"/proc/{VICTIM}/oom_score_adj"),
        lambda: touch(f"/proc/{VICTIM}/autogroup"),
    ],
    "read or change the memory of other programs": [
        lambda: any_of(f"/proc/{name}/{file}" for name in others() for file in ("mem", "oom_score_adj", "autogroup")),
        lambda: touch(f"/proc/{os.getppid()}/mem"),
        is_open,
        has_privileges,
    ],
    "see code or output of an earlier": [earlier_in_frames, earlier_in_memory],
    "take more memory": [lambda: touch(GIVEN["shared"], "wb")],
    "fill the disk": [fill],
    "start processes": [fork, lambda: check(libc.prctl(SIGNAL_AT_END_OF_PARENT, 0, 0, 0, 0))],
    "reach the network": [
        lambda: socket.create_connection(("127.0.0.1", GIVEN["port"])).close(),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
        unix_server,
        lambda: from_a_pair(lambda end, name: end.connect(name)),
        lambda: from_a_pair(lambda end, name: end.sendto(b"x", name)),
    ],
    "signal, trace": [
        lambda: os.kill(VICTIM, 0),
        lambda: os.setpriority(os.PRIO_PROCESS, VICTIM, 19),
        lambda: os.sched_setaffinity(VICTIM, os.sched_getaffinity(0)),
        lambda: resource.prlimit(VICTIM, resource.RLIMIT_CORE, (0, 0)),
        lambda: check(libc.ptrace(0x4206, VICTIM, 0, 0)),
        lambda: signal.pidfd_send_signal(os.pidfd_open(VICTIM), 0),
    ],
    "read your files": [lambda: touch(f"{FOLDER}/file", "rb"), lambda: os.listdir(FOLDER)],
    "read files that are open to all": [lambda: touch("/etc/passwd", "rb")],
    "write or delete": [
        lambda: touch(f"{FOLDER}/file"),
        lambda: os.rename(f"{FOLDER}/file", f"{FOLDER}/file"),
        lambda: touch(os.__file__, "ab"),
    ],
    "change mode and times": [lambda: os.chmod(f"{FOLDER}/file", 0o600), lambda: os.utime(f"{FOLDER}/file")],
    "ask whether": [lambda: os.stat(FOLDER), lambda: os.chdir(FOLDER)],
    "watch your folders": [
        lambda: check(libc.inotify_add_watch(libc.inotify_init(), FOLDER.encode(), 0x100)),
        lambda: check(libc.setxattr(f"{FOLDER}/file".encode(), b"user.note", b"x", 1, 0)),
        lambda: check(libc.getxattr(f"{FOLDER}/file".encode(), b"user.given", None, 0)),
    ],
    "take all asynchronous": [
        lambda: check(libc.syscall(GIVEN["io_setup"], 1, ctypes.byref(ctypes.c_ulong()))),
        lambda: fcntl.fcntl(0, fcntl.F_SETOWN, VICTIM),
    ],
    "see which processes": [
        see_victim,
        lambda: time.clock_gettime(CLOCK_OF_VICTIM),
        lambda: os.getpgid(VICTIM),
        lambda: os.close(os.pidfd_open(VICTIM)),
        lambda: resource.prlimit(VICTIM, resource.RLIMIT_CORE),
    ],
    "read what the interpreter": [lambda: touch(os.__file__, "rb")],
    "become another user": [
        lambda: os.setuid(0 if os.getuid() else 1),
        lambda: os.setgroups([0]),
        lambda: check(libc.mount(b"none", b"/", None, 32, None)),
        lambda: socket.sethostname("other"),
        lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
        lambda: touch("/proc/sys/kernel/core_pattern"),
    ],
    "leave something": [lambda: touch(GIVEN["planted"], "rb"), signal_noted_on_input],
    "make namespaces": [lambda: check(libc.unshare(NEW_USERS))],  # the last one: it changes who this is
}


def tried(probe):
    """What it raised; None: it got through."""
    try:
        probe()
    except BaseException as error:
        return type(error).__name__
    return None


print(json.dumps({row: [tried(probe) for probe in probes] for row, probes in ROWS.items()}))
