"""Numbers of Linux system calls, for the processors that the filters know.

Source: the kernel's `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`. Both tables
agree from number 424 on.
"""

from __future__ import annotations

import platform
from typing import NamedTuple

_SHARED = {
    "openat2": 437, "process_mrelease": 448, "set_mempolicy_home_node": 450,
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446, "memfd_secret": 447,
}  # fmt: skip

_X86_64 = {
    "open": 2, "ioctl": 16, "fcntl": 72, "truncate": 76, "setpriority": 141, "sched_setparam": 142,
    "sched_setscheduler": 144, "sched_setaffinity": 203, "ioprio_set": 251, "openat": 257, "sched_setattr": 314,
    "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "connect": 42, "accept": 43, "sendto": 44, "sendmsg": 46,
    "bind": 49, "listen": 50, "socketpair": 53, "clone": 56, "fork": 57, "vfork": 58, "kill": 62, "semget": 64,
    "semop": 65, "semctl": 66, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "ptrace": 101, "syslog": 103,
    "rt_sigqueueinfo": 129, "uselib": 134, "personality": 135, "ustat": 136, "vhangup": 153, "modify_ldt": 154,
    "pivot_root": 155, "_sysctl": 156, "adjtimex": 159, "setrlimit": 160, "chroot": 161, "acct": 163,
    "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
    "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
    "quotactl": 179, "tkill": 200, "lookup_dcookie": 212, "semtimedop": 220, "clock_settime": 227, "tgkill": 234,
    "mbind": 237, "set_mempolicy": 238, "mq_open": 240, "mq_unlink": 241, "kexec_load": 246, "add_key": 248,
    "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272, "move_pages": 279,
    "accept4": 288, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "fanotify_init": 300, "fanotify_mark": 301,
    "prlimit64": 302, "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "sendmmsg": 307,
    "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "seccomp": 317,
    "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    "prctl": 157, "fsync": 74, "fdatasync": 75, "sync": 162, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
    "getxattr": 191, "lgetxattr": 192, "fgetxattr": 193, "listxattr": 194, "llistxattr": 195, "flistxattr": 196,
    "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "io_setup": 206, "io_submit": 209,
    "inotify_init": 253, "inotify_add_watch": 254, "sync_file_range": 277, "inotify_init1": 294, "syncfs": 306,
    "setpgid": 109, "timer_create": 222,
}  # fmt: skip

_AARCH64 = {
    "fcntl": 25, "ioctl": 29, "ioprio_set": 30, "truncate": 45, "openat": 56, "sched_setparam": 118,
    "sched_setscheduler": 119, "sched_setaffinity": 122, "setpriority": 140, "sched_setattr": 274,
    "umount2": 39, "mount": 40, "pivot_root": 41, "lookup_dcookie": 18, "chroot": 51, "vhangup": 58, "quotactl": 60,
    "acct": 89, "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106,
    "clock_settime": 112, "syslog": 116, "ptrace": 117, "kill": 129, "tkill": 130, "tgkill": 131,
    "rt_sigqueueinfo": 138, "reboot": 142, "sethostname": 161, "setdomainname": 162, "setrlimit": 164,
    "prctl": 167, "settimeofday": 170, "adjtimex": 171, "mq_open": 180, "mq_unlink": 181, "msgget": 186, "msgctl": 187,
    "msgrcv": 188, "msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193, "shmget": 194,
    "shmctl": 195, "shmat": 196, "socket": 198, "socketpair": 199, "bind": 200, "listen": 201, "accept": 202,
    "connect": 203, "sendto": 206, "sendmsg": 211, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
    "swapon": 224, "swapoff": 225, "mbind": 235, "set_mempolicy": 237, "migrate_pages": 238, "move_pages": 239,
    "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "accept4": 242, "prlimit64": 261, "fanotify_init": 262,
    "fanotify_mark": 263, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
    "sendmmsg": 269, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273,
    "seccomp": 277, "memfd_create": 279, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
    "io_setup": 0, "io_submit": 2, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "getxattr": 8, "lgetxattr": 9,
    "fgetxattr": 10, "listxattr": 11, "llistxattr": 12, "flistxattr": 13, "removexattr": 14, "lremovexattr": 15,
    "fremovexattr": 16, "inotify_init1": 26, "inotify_add_watch": 27, "sync": 81, "fsync": 82, "fdatasync": 83,
    "sync_file_range": 84, "syncfs": 267, "timer_create": 107, "setpgid": 154,
}  # fmt: skip

LAST_KNOWN = 456  # futex_requeue, Linux 6.7: what came later is answered as a kernel without it would


class Processor(NamedTuple):
    """`audit` is the kernel's name of the processor and its calling convention (`linux/audit.h`)."""

    audit: int
    numbers: dict[str, int]


PROCESSORS = {
    "x86_64": Processor(0xC000003E, {**_X86_64, **_SHARED}),
    "aarch64": Processor(0xC00000B7, {**_AARCH64, **_SHARED}),
}


def order_of_clone(flags: int, thread_number: int) -> tuple[int, ...]:
    """The arguments of `clone`: their order depends on the processor (`clone(2)`, "C library/kernel differences")."""
    last = (thread_number, 0) if platform.machine() == "x86_64" else (0, thread_number)
    return (flags, 0, 0, *last)


def here() -> Processor:
    """Return the numbers of this machine. Raises OSError if the filters do not know it."""
    try:
        return PROCESSORS[platform.machine()]
    except KeyError:
        raise OSError(f"no system call numbers are known for {platform.machine()}") from None
