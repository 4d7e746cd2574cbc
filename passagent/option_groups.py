"""The definition of an option, and how the values of a group of options are checked.

A group is a TypedDict, or any annotated names, each annotation with an Option among its metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from passagent.errors import UsageError, nearest

Group = TypeVar("Group")


@dataclass(frozen=True)
class Option:
    """An option's properties beside its name and type."""

    help: str = ""
    """Empty: the docstring of the option in its group, else the first sentence of the setting's."""
    key: str | None = None
    """The setting that it sets, `section.key`."""
    default: Any = None
    shown: str = ""
    """The default in words, where the value says too little."""
    metavar: str = ""
    flags: tuple[str, ...] = ()
    """The names on the command line; empty: `--name`."""
    variable: str = ""
    """The environment's variable; empty: PASSAGENT_ and the flag's name."""
    parse: Callable[[Any], Any] | None = None
    """Makes a value of what is typed. Raises ValueError."""
    is_rare: bool = False
    """Shown by `--help-all` where a command has many options."""


def options_of(group: type[Any]) -> dict[str, Option]:
    """The options of a group by their names."""
    return {name: option_in(hint) for name, hint in get_type_hints(group, include_extras=True).items()}


def option_in(hint: Any) -> Option:
    """The Option among an annotation's metadata; a flag's default is False unless it may be None."""
    option = next(part for part in parts_of(hint) if isinstance(part, Option))
    is_flag = bool in (parts := list(parts_of(hint))) and type(None) not in parts
    return replace(option, default=False) if is_flag and option.default is None else option


def parts_of(hint: Any) -> Iterator[Any]:
    """An annotation and what it consists of, depth first."""
    yield hint
    for part in get_args(hint):
        yield from parts_of(part)


def is_required(hint: Any) -> bool:
    """Return whether an option of this annotation has to be given: it has no default and is never None."""
    return option_in(hint).default is None and type(None) not in parts_of(hint)


def choices_of(hint: Any) -> list[str]:
    """The words that an annotation allows, such as a Literal's; none where any value goes."""
    return [word for part in parts_of(hint) if get_origin(part) is Literal for word in get_args(part)]


def checked(group: type[Group], values: Mapping[str, Any]) -> Group:
    """`values`, parsed, with the defaults of the options of `group` that are not given.

    None and [] stand for what is not given. Raises UsageError for an unknown option or a wrong value.
    """
    from pydantic import TypeAdapter, ValidationError

    options = options_of(group)
    chosen = dict[str, Any]()
    for name, value in values.items():
        if name not in options:
            raise unknown_option(name, options)
        if value is None or value == []:
            continue
        parse = options[name].parse
        try:
            chosen[name] = parse(value) if parse else value
        except ValueError as error:
            raise UsageError(f"{name} = {value!r}: {error}") from error
    for name, hint in get_type_hints(group, include_extras=True).items():
        if name not in chosen and is_required(hint):
            raise UsageError(
                f"option '{name}' has to be given{f': {options[name].help}' if options[name].help else ''}"
            )
    try:
        chosen = TypeAdapter(group).validate_python(chosen)  # type: ignore[assignment]
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise UsageError(f"{name} = {chosen[name]!r}: {first['msg'].lower()}") from error
    return {name: option.default for name, option in options.items()} | chosen  # type: ignore[return-value]


def unknown_option(name: str, names: Iterable[str]) -> UsageError:
    """The error for an option that there is not."""
    return UsageError(f"no option '{name}'{nearest(name, list(names))}")
