"""The system calls that a shut-in process may not make: a seccomp filter.

The filter is a list of what is denied (processes, sockets, mounts, other processes, the kernel's own doors)
and leaves the rest, because CUDA's driver needs calls that nobody has listed. System calls that are newer
than this file do not exist for it. A denied call fails with EPERM. A tool, such as a compiler, may start
processes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from passagent.sandbox import privileges

_SET_MODE_FILTER = 1
_SPEC_ALLOW = 1 << 2
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_DENIED = _ERRNO | errno.EPERM
_LOAD, _EQUAL, _GREATER, _AND_SET, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_X32 = 0x40000000
_CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020000
"""Flags of clone that ask for a namespace."""
_AF_UNIX = 1
_KILLING = (9, 15, 19)
"""SIGKILL, SIGTERM, SIGSTOP: a worker that ends by one of these did not send it to itself."""
_OWNERS = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP: a signal to another process at the next byte
_OWN_FCNTL = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX
_PRCTL = (1, 4, 35)  # PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_MM
_NEWEST = 462

_MACHINES = {"x86_64": (0xC000003E, 0, 317), "aarch64": (0xC00000B7, 1, 277)}
"""Audit number, column of `_CALLS`, seccomp's own number."""
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "personality": (135, 92),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "prctl": (157, 167),
}
_CUDA = frozenset({"socketpair", "bind", "listen", "accept", "accept4"})
"""CUDA's driver opens a local socket of its own (and never connects it); `socket` is then AF_UNIX only."""
_TOOL = frozenset({"fork", "vfork", "clone", "execve"})
"""A compiler starts the programs that it consists of. It stays in its process group, which is killed."""


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def deny(cuda: bool) -> None:
    """Put the filter of a worker on the calling process, for good (no new privileges must be set).

    Raises OSError where there is no seccomp.
    """
    _filter(_CUDA if cuda else frozenset())


def deny_tool() -> None:
    """Put the filter of a tool on the calling process. Raises OSError where there is no seccomp."""
    _filter(_TOOL)


def _filter(allowed: frozenset[str]) -> None:
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    code = filter_code(machine, os.getpid(), allowed)
    program = _Program(len(code) // 8, code)
    number = _MACHINES[machine][2]
    privileges.check(privileges.libc().syscall(number, _SET_MODE_FILTER, _SPEC_ALLOW, ctypes.byref(program)))


def filter_code(machine: str, pid: int, allowed: frozenset[str]) -> bytes:
    """The filter as classic BPF, for `machine`'s numbers; calls that are `allowed` are left out of it."""
    audit, column, _ = _MACHINES[machine]
    code = [_op(_LOAD, 4), _op(_EQUAL, audit, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, 0)]
    code += [_op(_GREATER, _X32 - 1, 0, 1), _op(_RETURN, _KILL)]
    code += [_op(_GREATER, _NEWEST, 0, 1), _op(_RETURN, _ERRNO | errno.ENOSYS)]
    own_process, itself = _among(0, (pid,)), _among(0, (0, pid))
    bodies = {
        "ioctl": _outside(1, _OWNERS),
        "fcntl": _outside(1, _OWN_FCNTL),
        "prctl": _outside(0, _PRCTL),
        "clone": [_argument(0), _op(_AND_SET, _CLONE_THREAD, 1, 0), _op(_RETURN, _DENIED)],
        "kill": own_process + _outside(1, _KILLING),
        "tgkill": own_process + _outside(2, _KILLING),
        "rt_sigqueueinfo": own_process + _outside(1, _KILLING),
        "rt_tgsigqueueinfo": own_process + _outside(2, _KILLING),
        "clone3": [_op(_RETURN, _ERRNO | errno.ENOSYS)],
    }
    bodies |= {name: itself for name in _CALLS if name == "prlimit64" or name.startswith("sched_set")}
    if "clone" in allowed:
        bodies["clone"] = [_argument(0), _op(_AND_SET, _CLONE_NEW, 0, 1), _op(_RETURN, _DENIED)]
    if allowed & _CUDA:
        bodies["socket"] = _among(0, (_AF_UNIX,))
    for name in sorted(_CALLS, key=lambda name: name not in bodies):
        number = _CALLS[name][column]
        if number is None or (name in allowed and name != "clone"):
            continue
        body = bodies.get(name, [_op(_RETURN, _DENIED)])
        if name in bodies and name != "clone3":
            body = [*body, _op(_RETURN, _ALLOW)]
        code += [_op(_EQUAL, number, 0, len(body)), *body]
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def _among(argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Go on if the argument is one of `values`."""
    jumps = [_op(_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)]
    return [_argument(argument), *jumps, _op(_RETURN, _DENIED)]


def _outside(argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Go on if the argument is none of `values`."""
    checks = [part for value in values for part in (_op(_EQUAL, value, 0, 1), _op(_RETURN, _DENIED))]
    return [_argument(argument), *checks]


def _argument(index: int) -> bytes:
    """Load the low half of an argument: what the kernel reads of a pid, a command or a set of flags."""
    return _op(_LOAD, 16 + 8 * index)


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
