"""Requests of a shut-in worker to the referee to build for it (builds.py), as a schema with limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from passagent.kernels import build

SOURCE = 8 << 20
"""Characters of a kernel's source, or of its PTX."""
NAME = 1 << 10
"""Characters of a name."""
DEPTH = 8
"""Types within types of a launcher's signature."""
Name = Annotated[str, Field(max_length=NAME)]
_Source = Annotated[str, Field(max_length=SOURCE)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Build(_Model):
    build: dict[str, Any]


class _KernelBuild(_Model):
    source: _Source
    name: Name
    types: Annotated[list[Name], Field(max_length=256)]

    @model_validator(mode="after")
    def _takes_known_types(self) -> Self:
        build.Signature(tuple(self.types))
        return self


class CppBuild(_KernelBuild):
    """A C++ kernel."""

    kind: Literal["cpp"]


class CudaBuild(_KernelBuild):
    """A CUDA C++ kernel."""

    kind: Literal["cuda"]
    arch: Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}[af]?\z")]


class PtxBuild(_Model):
    """A Triton kernel's PTX."""

    kind: Literal["ptxas"]
    ptx: _Source
    options: Annotated[list[Name], Field(max_length=32)]


class LauncherBuild(_Model):
    """Triton's launcher for these types."""

    kind: Literal["launcher"]
    signature: Annotated[list[Any], Field(max_length=1 << 10)]
    descriptors: Annotated[list[bool], Field(max_length=1 << 10)]

    @model_validator(mode="after")
    def _is_shallow(self) -> LauncherBuild:
        parts, depth, count = self.signature, 0, 0
        while parts:
            depth, count = depth + 1, count + len(parts)
            if depth > DEPTH or count > 1 << 10:
                raise ValueError("a signature of no kernel's")
            if not all(isinstance(part, (str, list)) for part in parts):
                raise ValueError("a signature that holds something else than types")
            if any(len(part) > NAME for part in parts):
                raise ValueError("a signature with an endless type")
            parts = [inner for part in parts if isinstance(part, list) for inner in part]
        return self


class ModuleBuild(_Model):
    """passagent's launcher, or Triton's module for the driver."""

    kind: Literal["launch", "cuda_utils"]


BuildRequest = CppBuild | CudaBuild | PtxBuild | LauncherBuild | ModuleBuild
_REQUESTS: TypeAdapter[BuildRequest] = TypeAdapter(Annotated[BuildRequest, Field(discriminator="kind")])


def build_request(message: dict[str, Any]) -> BuildRequest:
    """The build that a worker's message asks for. Raises ValueError."""
    return _REQUESTS.validate_python(_Build.model_validate(message).build)
