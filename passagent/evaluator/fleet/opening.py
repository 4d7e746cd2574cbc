"""From settings to a pool and its reference device, on this machine or on others: callers need not know."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable

from passagent.config import EvaluatorConfig
from passagent.evaluator.fleet.offers import Offer
from passagent.evaluator.hardware.devices import find_devices
from passagent.evaluator.hardware.machine import Machine, measure_machine, read_machine
from passagent.evaluator.service import known
from passagent.evaluator.service.device_owner import Fleet
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.sandbox.environment import device_name, worker_threads

log = logging.getLogger("passagent.evaluator.fleet")

LOCAL, RAY = "local", "ray"


def open_pool(config: EvaluatorConfig, tell: Callable[[str], None] = log.warning) -> EvaluatorPool:
    """The pool that `config.pool` names; see EvaluatorPool. Raises UsageError, InfrastructureError."""
    if config.pool == LOCAL:
        return EvaluatorPool(config, tell=tell)
    return EvaluatorPool(config, tell=tell, fleet=_fleet(config, tell))


def _fleet(config: EvaluatorConfig, tell: Callable[[str], None]) -> Fleet:
    if _is_ray(config):
        from passagent.evaluator.fleet.ray_fleet import RayFleet

        return RayFleet(config, tell)
    from passagent.evaluator.fleet.http_fleet import HttpFleet

    return HttpFleet(config, tell)


def _is_ray(config: EvaluatorConfig) -> bool:
    return config.pool.partition("://")[0] == RAY


def check_devices(config: EvaluatorConfig) -> None:
    """Raise UsageError for devices that are not there, before anything is stored."""
    if config.pool == LOCAL:
        find_devices(config.device)
    else:
        _reference(config)


def _reference(config: EvaluatorConfig) -> Offer:
    """The device of other machines that the run's evaluations are made on. Raises UsageError."""
    if _is_ray(config):
        from passagent.evaluator.fleet.ray_fleet import survey
    else:
        from passagent.evaluator.fleet.http_fleet import survey
    return survey(config).reference


def device_label(config: EvaluatorConfig) -> str:
    """The device's name for people. Raises UsageError."""
    if config.pool == LOCAL:
        return device_name(find_devices(config.device)[0].name)
    return _reference(config).label


def machine_of(config: EvaluatorConfig) -> Machine:
    """The figures of the machine that evaluates. Raises UsageError."""
    if config.pool == LOCAL:
        return measure_machine(find_devices(config.device)[0].name)
    return read_machine(_reference(config).machine)


def threads_of(config: EvaluatorConfig) -> int | None:
    """OpenMP threads of a timed call; None where another machine decides."""
    return worker_threads(config.threads) if config.pool == LOCAL else config.threads


def environment_key(config: EvaluatorConfig) -> str:
    """Machine, device, driver, libraries, compiler and protocol, in words. Raises UsageError for the device.

    Equal for equal devices: which of several GPUs it is makes no difference, nor, in a pool, whose.
    """
    is_here = config.pool == LOCAL
    machine = known.this_machine(config.device) if is_here else f"cluster; {_reference(config).words}"
    settings = [config.model_dump_json(exclude={"device", "pool"}), str(threads_of(config))]
    protocol = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
    return f"{machine}; protocol {protocol}"
