"""Settings: what they are, their defaults, and how a preset, a file and `--set key=value` make one Config.

Every key of `configs/*.yaml` is a field here; an unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.functional_validators import AfterValidator, field_validator

from passagent import extend
from passagent.errors import UsageError, nearest
from passagent.tasks import resources
from passagent.tasks.reader import LibraryRule

_LARGEST = 2**63 - 1  # integer of the database


class _Section(BaseModel):
    # a limit that is no number would never be reached
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EvaluatorConfig(_Section):
    """How a candidate is judged (PassNet 3.5 and Appendices D-F)."""

    device: str = "cpu"
    """cpu, cuda, cuda:N, several of one model as cuda:N,cuda:M, or cuda:all."""
    pool: str = "local"
    """Whose devices: `local`, workers (`http://HOST:PORT,...`), or `ray[://ADDRESS]` (docs/cluster.md)."""
    dispatch: Literal["direct", "dynamo", "graph"] = "direct"
    """How the rewritten graph is called: itself, behind torch.compile's guards, or without the host's share.
    `graph` replays a CUDA graph on a GPU; on the CPU what dispatching takes is subtracted, an estimate."""
    reference: Literal["eager", "inductor"] = "eager"
    """`inductor`: a candidate is timed against torch.compile's default, too, and each subgraph has
    `vs_reference`. Correctness, speedup and AS are relative to eager in either case."""
    budget_s: float = Field(0.5, gt=0)
    """Time for measuring one subgraph, s: slower calls get fewer warm-ups and trials."""
    threads: int | None = Field(None, ge=1)
    """OpenMP threads of both sides; None: all cores but the referee's. With fewer a CPU judges several."""
    timeout_s: float = Field(120.0, gt=0)
    """Wall clock for one step of a candidate (load, one subgraph's checks, one block of timing), s."""
    memory_gb: float = Field(16.0, gt=0)
    """Address space of a candidate on the CPU target, GiB; no more than half of the machine's memory."""
    target: str | None = None
    """A target of your own, `pkg.mod:MyTarget` (extend.py); None: `cpu` or `cuda`, as the device says."""
    library: LibraryRule | None = None
    """Operators of torch that a pass may call; `none` but convolutions; None: what the task says."""
    special_values: bool = True
    """Outputs must be right on special values, too (docs/evaluator.md). `false` is for the paper's table."""


class ModelChoice(_Section):
    """A model, and where it is."""

    name: str
    """`expert`, `openai/NAME`, `anthropic/NAME`, `replay:FILE`, or a class of your own (see extend.py)."""
    base_url: str | None = None
    """A compatible server's address. None: the provider's own, or what its ..._BASE_URL variable says."""
    api: Literal["chat", "responses"] | None = None
    """The one of OpenAI's APIs to use; None: Responses at OpenAI's address, else Chat Completions."""


class Member(ModelChoice):
    """A model of an ensemble."""

    weight: float = Field(1.0, gt=0)
    """Its share of the episodes, relative to the others'."""


class ModelConfig(ModelChoice):
    """The model that writes passes, and how it is asked."""

    name: str = "expert"
    ensemble: list[Member] = []
    """Several models, each episode written by one of them; then `name` says nothing."""
    temperature: float | None = Field(None, ge=0)
    """The sampling temperature, sent only if set."""
    max_output_tokens: int = Field(16000, ge=1)
    """Tokens of one reply, at most."""
    stream: bool | None = None
    """Ask for the reply in pieces; None: if it may be longer than 4096 tokens."""
    timeout_s: float = Field(600.0, gt=0)
    """Seconds that one request may take."""
    max_retries: int = Field(10, ge=0)
    """Further tries of a request that failed for the server's sake."""
    prices: dict[str, list[float]] = {}
    """A model's price, USD per million tokens: input, output[, cached read[, cached write]]."""

    @field_validator("prices")
    @classmethod
    def _check_prices(cls, prices: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, figures in prices.items():
            if not 2 <= len(figures) <= 4 or min(figures) < 0:
                raise ValueError(f"the price of {name} is input, output[, cached[, cache write]]")
        return prices

    @property
    def label(self) -> str:
        """The model's name; of an ensemble `A=0.7 B=0.3`."""
        return " ".join(f"{m.name}={m.weight:g}" for m in self.ensemble) or self.name

    @property
    def is_compatible(self) -> bool:
        """Tell whether the server is not the provider's own."""
        variable = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
        return bool(self.base_url or os.environ.get(variable.get(self.name.partition("/")[0], ""), ""))

    @property
    def streams(self) -> bool:
        """Tell whether replies are asked for in pieces."""
        return self.max_output_tokens > 4096 if self.stream is None else self.stream

    def of(self, choice: ModelChoice) -> ModelConfig:
        """These settings for another model; what `choice` leaves open is as here.

        The address and API that are given here hold for models of the same provider as the first one.
        """
        first = self.ensemble[0].name if self.ensemble else self.name
        same = choice.name.partition("/")[0] == first.partition("/")[0]
        base_url = choice.base_url or (self.base_url if same else None)
        api = choice.api or (self.api if same else None)
        return self.model_copy(update={"name": choice.name, "base_url": base_url, "api": api, "ensemble": []})

    def members(self) -> list[ModelConfig]:
        """The settings of each model that episodes are given to."""
        return [self.of(member) for member in self.ensemble] or [self]


class RolesConfig(_Section):
    """Models for work other than writing passes."""

    hint_distiller: ModelChoice | None = None
    """Writes a hint of each episode that gained (Kernel Foundry 3.4)."""


TOOLS = ("file_editor", "check", "pass_evaluator", "search_knowledge", "profile")
POLICIES = ("evolutionary", "greedy", "mcts", "random", "best_of_n")


def _known_or_path(name: str, choices: tuple[str, ...]) -> str:
    if name not in choices and not extend.is_path(name):
        raise ValueError(f"unknown{nearest(name, list(choices))}; your own is written pkg.mod:Name")
    return name


class AgentConfig(_Section):
    """One episode: one conversation from one parent node."""

    tools: list[str] = Field(list(TOOLS), min_length=1)
    """Tools offered to the model: of TOOLS, and your own (`pkg.mod:MyTool`, see extend.py)."""

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, tools: list[str]) -> list[str]:
        return [_known_or_path(name, TOOLS) for name in tools]

    max_steps: int = Field(20, ge=1)
    """Model calls in an episode, at most."""
    max_evaluations: int = Field(8, ge=1)
    """Candidates evaluated in an episode, at most; what gives no plan is not counted."""
    context_tokens: int = Field(100_000, ge=2000)
    """Old observations are folded when the conversation passes this estimate, tokens."""
    hints: int = Field(6, ge=0)
    """Curated hints shown to the model; with 0 no learned one either."""
    siblings: int = Field(8, ge=0)
    """Earlier attempts shown to the model, relatives of the parent first, a line each."""
    knowledge: int = Field(2, ge=0)
    """Passages of the knowledge documents shown to the model."""
    instruct: str | None = Field(None, max_length=4000)
    """A person's words to the model, in the first message of each episode."""


class SearchConfig(_Section):
    """(fitness, selection policy, universal operator, stopping rule): KernelEvolve 3.1."""

    islands: int = Field(3, ge=1, le=1000)
    """Populations side by side."""
    iters: int = Field(12, ge=1, le=_LARGEST)
    """Episodes over the life of the run."""
    seed: int = Field(0, ge=-_LARGEST, le=_LARGEST)
    """Seed of the search's choices."""
    policy: Annotated[str, AfterValidator(partial(_known_or_path, choices=POLICIES))] = "evolutionary"
    """The policy that selects parents: one of POLICIES, or your own class (`pkg.mod:MyPolicy`, see
    extend.py)."""
    stop: list[str] = []
    """Stopping rules of your own beside those below, each `pkg.mod:MyRule` (extend.py)."""
    expert_seeds: int = Field(1, ge=0)
    """Episodes that the built-in expert writes before another model's first one (Kernel Foundry 3.2.1)."""
    seed_dir: str | None = None
    """A pass directory that the run starts from, beside the expert's. It is read when the run is made."""
    drafts: int = Field(0, ge=0)
    """The first episodes, which start from the task and see no other (KernelEvolve 4, Figure 10)."""
    roles: list[str] = Field(
        ["fusion", "memory", "launch", "parameters", "numerics", "algorithm"], min_length=1
    )
    """Role prompts (prompts/roles/*.j2), given to the islands in turn."""
    elites: int = Field(3, ge=1)
    """evolutionary: elites an island keeps as parents (Kernel Foundry 3.3.1)."""
    explore: float = Field(0.15, ge=0, le=1)
    """evolutionary: chance that an episode starts from the task itself and not from a parent."""
    stagnation: int = Field(2, ge=1)
    """Episodes of an island without a gain before an elite migrates to it."""
    reuse: bool = True
    """Answer an equal candidate on the same task and machine from the store instead of evaluating again."""
    finalists: int = Field(3, ge=0)
    """Best candidates measured again, side by side, before a run ends: that names the winner."""
    target_as: float | None = Field(None, gt=0)
    """Stop when a correct pass has this AS."""
    max_stagnation: int | None = Field(None, ge=1)
    """Stop after so many episodes of the run without a gain of 1%."""
    until: float | None = Field(None, gt=0)
    """Stop when an hour more is expected to gain less than this share of AS, such as 0.02."""
    until_sol: float | None = Field(None, ge=0)
    """Stop when a correct pass is within this share of the speed of light."""
    max_time_s: float | None = Field(None, gt=0)
    """End after this time: 90, 90s, 30m, 2h. The setting is in s."""
    max_tokens: int | None = Field(None, ge=1)
    """Stop after this many tokens."""
    max_cost: float | None = Field(None, gt=0)
    """Spend at most this, USD."""
    max_evaluations: int | None = Field(None, ge=1)
    """Evaluate at most this many candidates."""


class ExperienceConfig(_Section):
    """The experience that models are shown, and where it is kept (docs/experience.md)."""

    library: str | None = None
    """Where runs keep what they found and learned: a file, or `off`. None: see docs/experience.md."""
    exclude: list[str] = []
    """Tasks of an evaluation: nothing of them is stored in the library or taken from it."""
    seeds: bool = True
    """A pass that is known for this very task is a seed of the run."""
    examples: int = Field(2, ge=0)
    """Passes of similar tasks that episodes are shown which start from the task; drafts are shown five."""
    learned: bool = True
    """Show hints that models wrote, but for a random fifth of the episodes, which show their worth."""


class Config(_Section):
    """All settings of a run."""

    evaluator: EvaluatorConfig = EvaluatorConfig()
    model: ModelConfig = ModelConfig()
    roles: RolesConfig = RolesConfig()
    agent: AgentConfig = AgentConfig()
    experience: ExperienceConfig = ExperienceConfig()
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
    data = resources.read_yaml(path) or {}
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
            keys = known_keys() if "." in key else list(Config.model_fields)
            raise UsageError(f"{where}: unknown key '{key}'{nearest(key, keys)}") from error
        if first["type"] == "model_type":
            raise UsageError(f"{where}: {key} = {first['input']!r}: must be a mapping of keys") from error
        raise UsageError(f"{where}: {key} = {first['input']!r}: {first['msg'].lower()}") from error
