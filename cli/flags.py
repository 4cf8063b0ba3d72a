"""Flags of the command line: one per field of `Options`, and those that several verbs share."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field
from typing import Any, TypeVar

import click

from onnxfuse.config import FILES, SECTIONS, option_fields

PREFIX = "ONNXFUSE_"
DEBUG = "onnxfuse.debug"  # key in the context's metadata: whether --debug was given
SHORT = {"output": "-o", "inputs": "-i", "jobs": "-j", "verbose": "-v", "quiet": "-q"}
# Fields of Options that decide what is fused: `explain`, which only plans, has these flags.
PLANNING = (
    "target", "arch", "dim", "input_shape", "strategy", "plan_budget", "min_group", "enable", "disable", "skip_node",
    "fast_math", "precision", "winograd", "lock",
)  # fmt: skip
TUNING = tuple(name for name in PLANNING if name not in ("target", "arch", "strategy"))  # flags of tune
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_METAVARS = {"int": "N", "float": "X"}
_BOTH_WAYS = ("verify", "gain", "winograd")  # flags whose help shows the `--no-` form

OTHERS = "Result and messages"  # the section of the flags that all verbs have, the last of a verb's help
_OWN = "Options"  # the section of a verb's own flags, the first

Verb = TypeVar("Verb", bound=Callable[..., Any])


class SuggestingChoice(click.Choice[str]):
    """A choice whose error suggests a similar value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """One of the choices."""
        if value in self.choices:
            return str(value)
        near = difflib.get_close_matches(str(value), self.choices, 1)
        said = f"did you mean {near[0]}?" if near else f"it is one of {', '.join(map(str, self.choices))}"
        self.fail(f"there is no {value!r}; {said}", param, ctx)


class Duration(click.ParamType[float]):
    """Seconds, or a number with one of the units s, m and h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        text = str(value).strip()
        unit = _UNITS.get(text[-1:], 0.0)
        try:
            seconds = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            seconds = 0.0
        if not 0.0 < seconds < float("inf"):
            self.fail(f"{value!r} is not a duration; for example 90, 90s or 2m", param, ctx)
        return seconds


class Percent(click.ParamType[float]):
    """A share, as `3%` or `0.03`."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share as a number."""
        text = str(value).strip()
        try:
            share = float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
        except ValueError:
            share = -1.0
        if not 0.0 <= share < 100.0:
            self.fail(f"{value!r} is not a percentage; for example 3%", param, ctx)
        if share >= 1.0 and not text.endswith("%"):
            self.fail(f"{value!r} without % is {share:.0%}; write {text}% or {share / 100.0:g}", param, ctx)
        return share


class Tolerance(click.ParamType[float]):
    """A finite number that is not below 0."""

    name = "tolerance"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        try:
            found = float(value)
        except ValueError:
            found = -1.0
        if not 0.0 <= found < float("inf"):
            self.fail(f"{value!r} is not a tolerance; for example 1e-4", param, ctx)
        return found


class InputFile(click.types.StringParamType):
    """The name of a file or folder that a verb reads: none of its outputs may be that one."""


class Flag(click.Option):
    """An option in a section of its verb's help; the `--no-` form is shown only where it is the useful one."""

    def __init__(self, *names: Any, section: str = OTHERS, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The line of `--help`."""
        if self.secondary_opts and self.name not in _BOTH_WAYS:
            shown, self.secondary_opts = self.secondary_opts, []
            try:
                return super().get_help_record(ctx)
            finally:
                self.secondary_opts = shown
        return super().get_help_record(ctx)


def sections(options: Iterable[click.Parameter]) -> list[tuple[str, list[click.Parameter]]]:
    """The options of a verb by section, those common to all verbs last."""
    found: dict[str, list[click.Parameter]] = {name: [] for name in (_OWN, *SECTIONS, OTHERS)}
    for option in options:
        found[getattr(option, "section", OTHERS)].append(option)
    return [(name, those) for name, those in found.items() if those]


def flag(name: str, **settings: Any) -> Callable[[Verb], Verb]:
    """An option `--name`, also read from the environment; `param` names the verb's argument where it differs."""
    param = settings.pop("param", name.replace("-", "_"))
    spelled = f"--{name}"
    if settings.get("is_flag") and not name.startswith("no-"):
        spelled = f"--{name}/--no-{name}"
    short = [SHORT[param]] if param in SHORT else []
    settings.setdefault("section", _OWN)
    settings.setdefault("envvar", PREFIX + name.upper().replace("-", "_"))
    return click.option(param, *short, spelled, cls=Flag, **settings)


def name_of(field: Field[Any]) -> str:
    """The flag of a field of Options, without its dashes."""
    return str(field.metadata["flag"] or field.name.replace("_", "-"))


def _of_field(field: Field[Any]) -> Callable[[Verb], Verb]:
    about = field.metadata
    settings: dict[str, Any] = {
        "help": _help(field),
        "param": field.name,
        "default": field.default,
        "section": about["section"],
    }
    if about["many"]:
        settings |= {"multiple": True}
    metavar = about["metavar"] or _METAVARS.get(str(field.type).removesuffix(" | None"))
    if metavar and not about["choices"]:
        settings |= {"metavar": metavar}
    if str(field.type) in ("bool", "bool | None"):
        return flag(name_of(field), is_flag=True, **settings)
    return flag(name_of(field), type=_type(field), **settings)


def _type(field: Field[Any]) -> Any:
    if field.metadata["choices"]:
        return SuggestingChoice(field.metadata["choices"])
    if field.metadata["read"]:
        return InputFile()
    if field.name == "time_budget":
        return Duration()
    if field.name == "min_gain":
        return Percent()
    if field.name in ("rtol", "atol"):
        return Tolerance()
    kind = str(field.type)
    if kind == "int":
        return click.IntRange(min=0)
    return click.FLOAT if kind.startswith("float") else click.STRING


def _help(field: Field[Any]) -> str:
    text = str(field.metadata["help"])
    shown = field.default not in (None, False, ()) and "default" not in text
    text = f"{text} (may be repeated)" if field.metadata["many"] else text
    return f"{text} (default: {field.default})" if shown else text


def of_options(only: Sequence[str] = ()) -> Callable[[Verb], Verb]:
    """All flags of Options, or those named."""

    def add(verb: Verb) -> Verb:
        for field in reversed(option_fields()):
            if not only or field.name in only:
                verb = _of_field(field)(verb)
        return verb

    return add


def common(*, json: bool = True, overwrite: bool = True) -> Callable[[Verb], Verb]:
    """The flags common to all verbs; `json` adds those for results, `overwrite` one for their files."""

    def keep_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        ctx.meta[DEBUG] = value

    def add(verb: Verb) -> Verb:
        about = {"is_flag": True, "default": False, "expose_value": False, "callback": keep_debug, "section": OTHERS}
        verb = flag("debug", help="show the traceback of an error", **about)(verb)
        verb = flag("quiet", section=OTHERS, is_flag=True, default=False, help="print errors only")(verb)
        verb = flag("verbose", section=OTHERS, is_flag=True, default=False, help="print details")(verb)
        if json and overwrite:
            verb = flag("overwrite", section=FILES, is_flag=True, default=False, help="replace files that exist")(verb)
        if json:
            verb = flag(
                "report",
                section=OTHERS,
                metavar="FILE",
                help="write the result to a file as an HTML page, or as Markdown (.md)",
            )(verb)
            verb = flag("json-file", section=OTHERS, metavar="FILE", help="write the result to a file as JSON")(verb)
            verb = flag(
                "json", section=OTHERS, is_flag=True, default=False, param="as_json", help="print the result as JSON"
            )(verb)
        return verb

    return add
