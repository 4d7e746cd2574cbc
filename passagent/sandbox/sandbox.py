"""Around a candidate's worker: what the kernel offers without privileges, before a byte of it is read.

`enter` is called in the freshly forked worker. Every layer is optional, since machines and containers differ,
and the answer says of each whether it is on:

namespaces: own users, mounts, network and shared memory; scratch and /dev/shm are small private tmpfs
resource_limits: files, processor time, threads; address space but with CUDA, which maps terabytes
landlock: opens the system, Python, torch, and CUDA's devices; writes to its scratch
seccomp: starts no process, opens no socket, signals nobody else
killed_first: where memory ends the kernel ends it before others (with CUDA nothing limits its address space)
and descriptors_closed, no_new_privileges, no_capabilities, not_dumpable, dies_with_parent

A candidate sees no layer: honest code meets none of them, other code gets EPERM or EACCES.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pwd
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from passagent.sandbox import landlock, privileges, seccomp

_PACKAGE = Path(__file__).resolve().parents[1]
_NOSUID, _NODEV, _REC, _PRIVATE = 2, 4, 0x4000, 1 << 18
_SYSTEM = """
/usr /lib /lib32 /lib64 /bin /sbin /sys /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/alternatives
/etc/passwd /etc/group /etc/nsswitch.conf /etc/localtime /etc/nvidia /etc/nvidia-container-runtime
"""
_PROC = "self cpuinfo meminfo stat loadavg uptime version filesystems devices modules driver sys"
_DEVICES = "null zero full random urandom"


@dataclass(frozen=True)
class Limits:
    """Limits of a worker on the machine; 0: as much as there is."""

    memory: int = 0
    """Address space, bytes."""
    file: int = 256 << 20
    """The largest file, its log included, bytes."""
    scratch: int = 512 << 20
    """All its files together, bytes: with a mount namespace only."""
    files: int = 16384
    """Files in its scratch: with a mount namespace only."""
    cpu_s: int = 4 * 3600
    """Processor time of all its threads."""
    threads: int = 1024
    """With a user namespace only: elsewhere the kernel counts what else the user runs."""
    descriptors: int = 4096


def limit(limits: Limits) -> None:
    """Set the resource limits that every worker has, trusted or not."""
    privileges.lower(resource.RLIMIT_CORE, 0)
    privileges.lower(resource.RLIMIT_FSIZE, limits.file)
    if limits.memory:
        privileges.lower(resource.RLIMIT_AS, limits.memory)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it: a full log would go on as an exception


def follow_parent() -> None:
    """Be killed when the process that forked this one ends."""
    privileges.prctl(privileges.SET_PDEATHSIG, signal.SIGKILL)


def close_others(needed: set[int]) -> None:
    """Close every descriptor but the standard ones and `needed`."""
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd not in needed:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)


def enter(scratch: Path, limits: Limits, needed: set[int], *, cuda: bool) -> dict[str, str]:
    """Shut the calling process in, for good; its working directory becomes `scratch`.

    `needed` descriptors stay open. Returns which layers are "on" and which "off: REASON".
    """
    report: dict[str, str] = {}
    layer = functools.partial(privileges.enter, report)
    layer("descriptors_closed", lambda: close_others(needed))
    own_users = layer("user_namespace", privileges.own_users)
    layer("network_namespace", lambda: privileges.unshare(privileges.NEWNET))
    layer("ipc_namespace", lambda: privileges.unshare(privileges.NEWIPC))
    layer("private_scratch", lambda: _own_mounts(scratch, limits))
    os.chdir(scratch)
    layer("resource_limits", lambda: _limit_more(limits, own_users, cuda))
    layer("killed_first", lambda: Path("/proc/self/oom_score_adj").write_text("1000"))
    layer("no_new_privileges", lambda: privileges.prctl(privileges.SET_NO_NEW_PRIVS, 1))
    layer("no_capabilities", privileges.drop_capabilities)
    layer("not_dumpable", lambda: privileges.prctl(privileges.SET_DUMPABLE, 0))
    layer("dies_with_parent", follow_parent)
    shared = [Path("/dev/shm")] if report["private_scratch"] == "on" else []
    proc = [Path("/proc/self")] if cuda else []  # CUDA names its threads there
    layer("landlock", lambda: landlock.restrict(readable(), [scratch, *shared, *proc], devices()))
    layer("seccomp", lambda: seccomp.deny(cuda))
    return report


@functools.cache
def readable() -> tuple[Path, ...]:
    """Paths that a worker may read: the system, Python, its packages and passagent's; no project and no home.

    Looked up once, in the fork server.
    """
    packages = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    for name in ("torch", "triton", "numpy"):
        origin = getattr(sys.modules.get(name), "__file__", None)
        packages += [str(Path(origin).parents[1])] if origin else []
    libraries = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), os.environ.get("CUDA_HOME", "")]
    names = [*_SYSTEM.split(), sys.prefix, sys.base_prefix, *packages, *filter(None, libraries)]
    places = {Path(name).resolve() for name in names} - {Path("/"), _home()}
    return (*sorted(places), _PACKAGE, *(Path("/proc") / name for name in _PROC.split()))


def _home() -> Path:
    """The user's own: `$HOME` is the scratch directory here."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path("/")


def devices() -> list[Path]:
    """Device files that a worker may use, CUDA's where there are any."""
    return [Path("/dev") / name for name in _DEVICES.split()] + sorted(Path("/dev").glob("nvidia*"))


def _own_mounts(scratch: Path, limits: Limits) -> None:
    privileges.unshare(privileges.NEWNS)
    _mount(b"none", b"/", None, _REC | _PRIVATE, None)
    room = f"size={limits.scratch},nr_inodes={limits.files},mode=700".encode()
    for path in (scratch, Path("/dev/shm")):
        if path.is_dir():
            _mount(b"tmpfs", os.fsencode(path), b"tmpfs", _NOSUID | _NODEV, room)


def _limit_more(limits: Limits, own_users: bool, cuda: bool) -> None:
    privileges.lower(resource.RLIMIT_CPU, limits.cpu_s)
    privileges.lower(resource.RLIMIT_NOFILE, limits.descriptors)
    if own_users:
        privileges.lower(resource.RLIMIT_NPROC, limits.threads)
    if not cuda:
        privileges.lower(resource.RLIMIT_MEMLOCK, 64 << 20)


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None) -> None:
    privileges.check(privileges.libc().mount(source, target, kind, ctypes.c_ulong(flags), data))
