"""Commands from functions: parameters from the options of a group, and a help that fits a screen."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typing_extensions import TypedDict

from passagent.option_groups import (
    Option,
    checked,
    choices_of,
    is_required,
    option_in,
    parts_of,
    unknown_option,
)
from passagent.options import Json, RunsDir
from passagent.store import Store
from passagent.view.text import Output

SHOWN = 15
"""Options that `--help` shows of a command at most; `--help-all` shows all."""
VARIABLES = "Each option has a variable of the environment: --max-time is PASSAGENT_MAX_TIME."


def argument(name: str, help: str, **settings: Any) -> Any:
    """A command's argument, as its help names it."""
    return typer.Argument(metavar=name, help=help, **settings)


def command(
    app: typer.Typer, name: str | None = None, *, is_callback: bool = False, **settings: Any
) -> Callable[[Any], Any]:
    """Make a command of a function. Its help is the docstring.

    A parameter with an Option is an option, another one an argument; `**options: Unpack[Group]`
    stands for all options of the group. The function is called with values that were checked. What returns
    an Output has --json, too; what takes a `store` has --runs-dir, whose store is open until the Output is
    printed. is_callback: what a group of commands does without one of them.
    """

    def register(function: Callable[..., object]) -> Callable[..., object]:
        hints = get_type_hints(function, include_extras=True)
        arguments, options, own_options = list[inspect.Parameter](), dict[str, Any](), dict[str, Any]()
        group, answers = None, Output in parts_of(hints["return"])
        for parameter in inspect.signature(function).parameters.values():
            hint = hints[parameter.name]
            if parameter.kind is parameter.VAR_KEYWORD:
                [group] = get_args(hint)
                options = get_type_hints(group, include_extras=True)
            elif hint is Store:
                own_options["runs_dir"] = RunsDir
            elif any(isinstance(part, Option) for part in parts_of(hint)):
                own_options[parameter.name] = hint
            else:
                arguments.append(parameter.replace(annotation=hint))
        options |= own_options | ({"json": Json} if answers else {})
        every = TypedDict("every", options, total=False)  # type: ignore[misc]

        @functools.wraps(function)
        def call(**values: Any) -> None:
            chosen = {name: value for name, value in values.items() if name in options}
            values.pop("help_all", None)
            values |= checked(every, chosen)
            as_json = answers and values["json"]
            if answers and "json" not in hints:
                values.pop("json")
            with ExitStack() as stack:
                if Store in hints.values():
                    values["store"] = stack.enter_context(Store.open(values.pop("runs_dir"), create=False))
                answer = function(**values)
                if isinstance(answer, Output):
                    answer.print(as_json)

        parameters = [*arguments, *(_parameter(name, hint) for name, hint in options.items())]
        parameters += [] if is_callback else [_SHOW_ALL]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        if is_callback:
            app.callback(invoke_without_command=True)(call)
        else:
            app.command(name, cls=functools.partial(Command, options, group), **settings)(call)  # type: ignore[arg-type]
        return function

    return register


def _parameter(name: str, hint: Any) -> inspect.Parameter:
    """Make the parameter that typer makes an option of: a flag, a text or several, which `checked` parses."""
    option, choices = option_in(hint), choices_of(hint)
    flags = option.flags or (f"--{name.replace('_', '-')}",)
    variable = flags[0].partition("/")[0].removeprefix("--").replace("-", "_").upper()
    parts = list(parts_of(hint))
    is_several = any(get_origin(part) in (list, Mapping) for part in parts)
    kind: Any = bool if bool in parts else list[str] if is_several else str
    names = {int: "N", float: "X"}
    metavar = (
        f"<{'|'.join(choices)}>"
        if choices
        else next((names[p] for p in parts if isinstance(p, type) and p in names), "TEXT")
    )
    declared = typer.Option(
        *flags,
        help=option.help,
        show_envvar=False,
        envvar=option.variable or f"PASSAGENT_{variable}",
        metavar=None if kind is bool else option.metavar or metavar,
        autocompletion=(lambda: choices) if choices else None,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, declared]
    )


def _show_all(context: typer.Context, is_asked: bool) -> None:
    """Print the help with every option, and exit."""
    if is_asked:
        context.meta["all"] = True
        print(context.get_help())
        raise typer.Exit


_SHOW_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--help-all", is_eager=True, expose_value=False, callback=_show_all)
    ],
)


class Command(TyperCommand):
    """A command whose help shows its common options, and which names the nearest to an unknown one."""

    def __init__(self, options: dict[str, Any], group: type | None, *words: Any, **settings: Any) -> None:
        super().__init__(*words, **settings)
        self._options, self._group = options, group

    def parse_args(self, context: Any, words: list[str]) -> list[str]:
        """Read the command line. Raises UsageError for an unknown option, as a call from Python does."""
        try:
            return super().parse_args(context, words)
        except Exception as error:  # typer's own copy of click raises it
            name = getattr(error, "option_name", None)
            if type(error).__name__ != "NoSuchOption" or not str(name).startswith("--"):
                raise
            raise unknown_option(str(name)[2:].replace("-", "_"), self._options) from error

    def format_options(self, context: Any, formatter: Any) -> None:
        """Write the arguments, then at most SHOWN options, or all that there are."""
        own_options = {name: option_in(hint) for name, hint in self._options.items()}
        options = _described(own_options, self._group)
        is_short = len(options) > SHOWN and "all" not in context.meta
        arguments, rows = [], []
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is None or parameter.name == "help_all":
                continue
            option = options.get(str(parameter.name))
            if parameter.param_type_name == "argument":
                arguments.append(record)
            elif option is None:
                rows.append(record)
            elif not (is_short and option.is_rare):
                hint = self._options[str(parameter.name)]
                is_list = any(get_origin(part) is list for part in parts_of(hint))
                more = ["repeatable"] * is_list + ["required"] * is_required(hint)
                default = "" if option.default in (None, False, True) else str(option.default)
                more += [f"default: {option.shown or default}"] if option.shown or default else []
                help = option.help + (f"  [{'; '.join(more)}]" if more else "")
                rows.append((record[0].partition("  [")[0], help))
        if is_short:
            rows.append(
                ("--help-all", f"Show the other {sum(other.is_rare for other in options.values())}, too.")
            )
        for title, records in (("Arguments", arguments), ("Options", rows)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if "all" in context.meta:
            formatter.write(f"\n{VARIABLES}\n")


def _described(options: Mapping[str, Option], group: type | None) -> dict[str, Option]:
    """`options` of a group with their help, and the defaults of the settings that they set."""
    from passagent import config

    whole, sentences = config.Config(), _docstrings(group) if group else {}
    result = dict(options)
    for name, option in options.items():
        help, default_text = option.help or sentences.get(name, ""), option.shown
        if option.key is not None:
            name_of_section, _, key = option.key.partition(".")
            settings = getattr(whole, name_of_section)
            default, words = getattr(settings, key), _docstrings(type(settings)).get(key, "")
            help = help or words.partition(". ")[0].rstrip(".").replace("`", "") + "."
            default_text = default_text or (
                "" if default is False or default in (None, [], {}) else str(default)
            )
        result[name] = replace(option, help=help, shown=default_text)
    return result


def _docstrings(owner: type) -> dict[str, str]:
    """The docstrings of a class's fields, and of those that it inherits."""
    result = dict[str, str]()
    for base in getattr(owner, "__orig_bases__", owner.__bases__):
        if getattr(base, "__module__", "").startswith("passagent."):
            result |= _docstrings(base)
    path = Path(str(sys.modules[owner.__module__].__file__))
    section = next(node for node in _parsed(path).body if getattr(node, "name", "") == owner.__name__)
    assert isinstance(section, ast.ClassDef)
    for field, text in itertools.pairwise(section.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                result[name] = " ".join(words.split())
    return result


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
