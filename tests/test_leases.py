"""Leases of a device: real processes come first, share, time alone, die, and are told their place."""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny

from passagent.errors import InfrastructureError
from passagent.evaluator.hardware import leases
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.hardware.leases import DeviceLease

GPU = Device("cuda:0", "GPU-leased", "none")
CPU = Device("cpu", "cpu-leased", "none")
HOLDER = """
import sys
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.hardware.leases import DeviceLease

lease = DeviceLease(Device(*sys.argv[1:4]))
print("asks", flush=True)
with getattr(lease, sys.argv[4])():
    print("has it", flush=True)
    sys.stdin.readline()
"""
REFEREE = """
import json, sys, time
sys.path.insert(0, {tests!r})
import tiny
from passagent.config import EvaluatorConfig
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging.referee import Referee
from passagent.tasks import load_task

spans, granted, end = [], DeviceLease._granted, DeviceLease._end

def noted(self, ticket):
    spans.append((ticket.kind, ticket.granted, time.monotonic()))
    end(self, ticket)

DeviceLease._end = noted
from passagent.evaluator.judging import effort
whole = effort.Effort
effort.Effort = lambda *given: whole(*given, trials=50_000, most_trials=50_000)
with Referee(EvaluatorConfig(budget_s=2.0)) as referee:
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.monotonic()
    evaluation = referee.evaluate(load_task(sys.argv[1]), tiny.candidate())
    print(json.dumps([evaluation.status, begun, time.monotonic(), spans]), flush=True)
"""


@pytest.fixture(autouse=True)
def _own_leases(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSAGENT_LEASES", str(tmp_path))


@contextmanager
def holder(device: Device, kind: str = "exclusive"):
    """A process that asks for a lease, and has a place in the queue by now."""
    before = tickets(device)
    command = [sys.executable, "-c", HOLDER, device.name, device.uuid, device.model, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "asks\n"
            wait_for(lambda: tickets(device) == before + 1)
            yield process
        finally:
            process.kill()


def tickets(device: Device) -> int:
    """So many were drawn until now."""
    path = leases.lease_directory() / f"passagent-{device.uuid}.lease"
    return int.from_bytes(path.read_bytes()[:8], "little") if path.exists() else 0


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.005)


def has_it(process: subprocess.Popen[str]) -> None:
    assert process.stdout.readline() == "has it\n"


def would_wait(device: Device, kind: str = "exclusive", cores: list[int] | None = None) -> bool:
    """Whether a lease is not granted now."""
    lease = DeviceLease(device, cores)
    number = leases.fcntl.F_WRLCK if kind == "exclusive" else leases.fcntl.F_RDLCK
    ticket = leases._Ticket(lease._path, lease._units, number, os.getpid())
    try:
        return ticket.is_preceded()
    finally:
        ticket.close()


def test_first_come_first_served_and_who_dies_gives_up_its_place(monkeypatch):
    monkeypatch.setattr(leases, "TELL_AFTER_S", 0.0)
    with holder(GPU) as first, holder(GPU) as second, holder(GPU) as third:
        has_it(first)
        told: list[str] = []
        got = threading.Event()

        def ask() -> None:
            with DeviceLease(GPU, tell=told.append).exclusive():
                got.set()

        asking = threading.Thread(target=ask)
        asking.start()
        wait_for(lambda: told)
        assert re.fullmatch(rf"waiting for cuda:0, 3 before you \(first: pid {first.pid}, -c .*\)", told[0])
        second.kill()  # in the queue
        first.kill()  # while it has the lease
        has_it(third)
        assert not got.is_set()
        third.stdin.close()
        asking.join(300)
        assert got.is_set() and len(told) == 1
    assert not would_wait(GPU)


def test_a_waiting_lease_names_the_user_and_no_command_of_another_users_program(monkeypatch):
    monkeypatch.setattr(leases, "TELL_AFTER_S", 0.0)
    owner, told = pwd.getpwuid(os.getuid()).pw_name, []

    def ask() -> None:
        with DeviceLease(GPU, tell=told.append).exclusive():
            pass

    with holder(GPU) as first:
        has_it(first)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        asking = threading.Thread(target=ask)
        asking.start()
        wait_for(lambda: told)
    asking.join(300)
    assert told == [f"waiting for cuda:0, 1 before you (first: pid {first.pid}, of {owner})"]


def test_steps_share_the_device_and_timing_waits_for_them_but_for_no_later_ones():
    with holder(GPU, "shared") as step:
        has_it(step)
        assert not would_wait(GPU, "shared") and would_wait(GPU)
        with holder(GPU) as timing:
            assert would_wait(GPU, "shared"), "timing was there before"
            step.stdin.close()
            has_it(timing)
            assert would_wait(GPU, "shared")
        assert not would_wait(GPU, "shared")


def test_lease_makes_the_directory_that_is_missing(tmp_path, monkeypatch):
    place = tmp_path / "not" / "there"
    monkeypatch.setenv("PASSAGENT_LEASES", str(place))
    with DeviceLease(GPU).exclusive():
        assert tickets(GPU) == 1
    assert stat.S_IMODE(place.stat().st_mode) == 0o1777, "other users lease there, too"


def test_timing_has_its_own_steps_and_those_of_a_step_are_part_of_it():
    lease = DeviceLease(GPU)
    with lease.exclusive(), lease.shared(), lease.host():
        assert tickets(GPU) == 1
    with lease.shared(), lease.shared():
        assert tickets(GPU) == 2


def test_a_step_of_timing_in_another_thread_does_not_wait_for_it():
    lease = DeviceLease(GPU)
    done = threading.Event()

    def step() -> None:
        with lease.shared():
            done.set()

    with holder(GPU, "shared") as other:
        has_it(other)
        entered = threading.Event()

        def time_it() -> None:
            with lease.exclusive():
                entered.set()
                assert done.wait(300)

        timing = threading.Thread(target=time_it)
        timing.start()
        wait_for(lambda: tickets(GPU) == 2)
        beside = threading.Thread(target=step)
        beside.start()  # its place is behind that of timing
        wait_for(lambda: tickets(GPU) == 3)
        other.stdin.close()
        timing.join(300)
        beside.join(300)
        assert entered.is_set() and done.is_set()


def test_a_long_measurement_gives_the_device_to_who_waits_and_takes_it_back(monkeypatch):
    monkeypatch.setattr(leases, "SLICE_S", 0.0)
    with DeviceLease(GPU).exclusive() as share:
        assert share() == 0.0, "nobody waits"
        with holder(GPU) as other:
            threading.Timer(0.1, other.stdin.close).start()
            assert share() > 0.0
            has_it(other)
        assert would_wait(GPU)
        monkeypatch.setattr(leases, "SLICE_S", 3600.0)
        with holder(GPU):
            assert share() == 0.0, "not for so long yet"


def test_cores_are_leased_one_by_one():
    with DeviceLease(CPU, [4, 5, 6]).exclusive():
        assert not would_wait(CPU, cores=[0, 1, 2, 3])
        assert not would_wait(CPU, "shared", cores=[7])
        assert would_wait(CPU, "shared", cores=[0, 5])
    assert not would_wait(CPU, cores=[4, 5, 6])


def test_steps_on_the_host_wait_for_timing_on_its_cores_only():
    with DeviceLease(GPU).exclusive(), DeviceLease(GPU).host():
        assert tickets(GPU) == 1
    with holder(CPU), DeviceLease(CPU, [1000]).host():
        assert tickets(CPU) == 2


def test_the_file_is_for_all_users_and_one_that_cannot_be_opened_is_named(tmp_path):
    before = os.umask(0o077)
    try:
        with DeviceLease(GPU).shared():
            path = tmp_path / f"passagent-{GPU.uuid}.lease"
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
    finally:
        os.umask(before)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InfrastructureError, match=f"^{path}: the device cannot be leased: "):
        DeviceLease(GPU).shared().__enter__()


@pytest.mark.long
def test_two_programs_evaluate_at_once_and_neither_times_while_the_other_does_anything(tmp_path):
    task = tiny.write_task(tmp_path / "task")
    command = [sys.executable, "-c", REFEREE.format(tests=str(Path(__file__).parent)), str(task)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        for one in programs:
            assert one.stdout.readline() == "ready\n"
        for one in programs:
            one.stdin.close()
        one, other = (json.loads(program.stdout.readline()) for program in programs)
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert (one[0], other[0]) == ("ok", "ok")
    assert max(one[1], other[1]) < min(one[2], other[2]), "they took turns"
    timing = leases.fcntl.F_WRLCK
    for own, others in ((one[3], other[3]), (other[3], one[3])):
        blocks = [(start, end) for kind, start, end in own if kind == timing]
        begins = [begun for kind, begun, _ in others if kind == timing]
        # else one had ended when the other began
        if begins[0] < blocks[-1][0] and begins[-1] >= blocks[0][1]:
            assert any(blocks[0][1] <= begun < blocks[-1][0] for begun in begins)
        for start, end in blocks:
            assert all(ended <= start or end <= begun for _, begun, ended in others)
