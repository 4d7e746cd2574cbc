"""Settings: what they are, their defaults, and how a preset, a file and `--set key=value` make one Config.

Every key of `configs/*.yaml` is a field here; an unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from passagent import resources
from passagent.errors import UsageError, nearest


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EvaluatorConfig(_Section):
    """How a candidate is judged (DESIGN 4; PassNet 3.5 and Appendices D-F)."""

    device: str = "cpu"
    """`cpu`, `cuda` or `cuda:N`."""
    dispatch: Literal["direct", "dynamo"] = "direct"
    """`direct` calls the rewritten GraphModule; `dynamo` keeps torch.compile's guards around it."""
    warmups: int = Field(25, ge=0)
    """Calls before timing starts, each side."""
    trials: int = Field(100, ge=2)
    """Timed calls of each side."""
    budget_s: float = Field(2.0, gt=0)
    """Time for one side of one subgraph, s: slower calls get fewer warm-ups and trials (at least 10)."""
    unstable_iqr: float = Field(0.2, gt=0)
    """An interquartile range over this share of the median asks for another measurement."""
    remeasure: int = Field(2, ge=0)
    """Further measurements of an unstable subgraph, at most."""
    threads: int | None = Field(None, ge=1)
    """OpenMP threads of eager and candidate alike; None: all cores but one, which the referee and the machine
    need: a thread that has to wait for its core holds up all others, and that would be timed."""
    timeout_s: float = Field(120.0, gt=0)
    """Wall clock for one step of a candidate (load, one subgraph's checks, one block of timing), s."""
    memory_gb: float = Field(16.0, gt=0)
    """Address space of a candidate on the CPU target, GiB."""
    b: float = Field(0.1, gt=0, lt=1)
    """Score of a wrong subgraph."""
    p: float = Field(0.0, ge=0, le=1)
    """Exponent of the slow-down penalty: s^(p+1) for s < 1."""
    single_replacement_func: bool = True
    """All passes of a candidate must share one `replacement_func` (PassBench)."""


class ModelConfig(_Section):
    """Which model writes passes, and how it is asked."""

    name: str = "expert"
    """`expert`, `openai/NAME`, `anthropic/NAME` or `replay:FILE`."""
    base_url: str | None = None
    temperature: float | None = None
    max_output_tokens: int = Field(16000, ge=1)
    timeout_s: float = Field(600.0, gt=0)
    max_retries: int = Field(6, ge=0)


class AgentConfig(_Section):
    """One episode: one conversation from one parent node."""

    max_steps: int = Field(20, ge=1)
    """Model calls in an episode, at most."""
    max_evaluations: int = Field(4, ge=1)
    """Calls of pass_evaluator in an episode, at most."""
    context_tokens: int = Field(100_000, ge=2000)
    """Old observations are folded when the conversation passes this estimate, tokens."""
    hints: int = Field(6, ge=0)
    """Hints shown to the model."""
    siblings: int = Field(8, ge=0)
    """Earlier attempts shown to the model, a line each."""


class SearchConfig(_Section):
    """(fitness, selection policy, universal operator, stopping rule): KernelEvolve 3.1."""

    islands: int = Field(3, ge=1)
    iters: int = Field(12, ge=1)
    """Episodes of the whole run."""
    seed: int = 0
    policy: Literal["evolutionary", "greedy"] = "evolutionary"
    roles: list[str] = ["fusion", "memory", "launch", "numerics"]
    """Role prompts (prompts/roles/*.j2), given to the islands in turn."""
    elites: int = Field(3, ge=1)
    """Elites an island keeps as parents (Kernel Foundry 3.3.1)."""
    tournament: int = Field(2, ge=1)
    explore: float = Field(0.15, ge=0, le=1)
    """Chance that an episode starts from the task itself and not from a parent."""
    stagnation: int = Field(2, ge=1)
    """Episodes of an island without a gain before an elite migrates to it."""
    min_gain: float = Field(0.01, ge=0)
    """Relative gain in AS that counts as progress."""
    reuse: bool = True
    """Answer an equal candidate on the same task and machine from the store instead of evaluating again."""
    finalists: int = Field(3, ge=0)
    """Best candidates measured once more before a run ends; the fresh scores name the winner."""
    target_as: float | None = None
    max_time_s: float | None = None
    max_tokens: int | None = None
    max_evaluations: int | None = None


class Config(_Section):
    """All settings of a run."""

    evaluator: EvaluatorConfig = EvaluatorConfig()
    model: ModelConfig = ModelConfig()
    agent: AgentConfig = AgentConfig()
    search: SearchConfig = SearchConfig()


def known_keys() -> list[str]:
    """Every `section.key`."""
    return [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        for key in field.annotation.model_fields  # type: ignore[union-attr]
    ]


def presets() -> list[str]:
    """Names of the shipped (and the user's own) presets."""
    return [Path(name).stem for name, _ in resources.glob("configs/*.yaml") if Path(name).stem != "prices"]


def load_config(preset_or_file: str | None = None, overrides: dict[str, Any] | None = None) -> Config:
    """The Config of a preset or YAML file (default: preset `default`) with `section.key` overrides applied.

    Raises UsageError, in one line, for an unknown preset, a file that is no YAML mapping, an unknown key
    or a value of the wrong kind.
    """
    name = preset_or_file or "default"
    if name in presets():
        path = resources.find(f"configs/{name}.yaml")
    else:
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"--config {name}: no such preset or file{nearest(name, presets())}")
    try:
        data = yaml.safe_load(path.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path}: must be a mapping of sections ({', '.join(Config.model_fields)})")
    config = validate(data, str(path))
    return override(config, overrides) if overrides else config


def override(config: Config, values: dict[str, Any]) -> Config:
    """`config` with `section.key` values changed. Raises UsageError for an unknown key or a wrong value."""
    data = config.model_dump()
    for key, value in values.items():
        section, _, field = key.partition(".")
        if key not in known_keys():
            raise UsageError(f"--set {key}: unknown key{nearest(key, known_keys())}")
        data[section][field] = value
    return validate(data, "setting")


def validate(data: dict[str, Any], where: str) -> Config:
    """A Config of plain data. Raises UsageError naming `where` and the key."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = known_keys() if "." in key else list(Config.model_fields)
            raise UsageError(f"{where}: unknown key '{key}'{nearest(key, known)}") from error
        raise UsageError(f"{where}: {key} = {first['input']!r}: {first['msg'].lower()}") from error


def parse_set(pairs: list[str]) -> dict[str, Any]:
    """`["search.iters=4"]` to `{"search.iters": 4}`; values are YAML. Raises UsageError."""
    result: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"--set {pair}: write key=value, such as --set search.iters=20")
        try:
            result[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {pair}: the value is not valid YAML") from error
    return result
