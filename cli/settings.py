"""Settings: flags from `[tool.onnxfuse]` of pyproject.toml or from onnxfuse.toml, in this folder or one above."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from onnxfuse.errors import UsageError

from .flags import PREFIX

FILES = ("onnxfuse.toml", "pyproject.toml")
OTHERS = ("ONNXFUSE_ISA", "ONNXFUSE_ATTEMPTS")  # variables of libraries and child processes


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of flags by name without dashes; `path` is None if there is no file."""

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


def find(start: Path) -> Settings:
    """The nearest file with settings, from `start` upwards. Raises UsageError for one that cannot be read."""
    for folder in (start, *start.parents):
        for name in FILES:
            path = folder / name
            if path.is_file():
                values = _read(path)
                if values is not None:
                    return Settings(path, values)
    return Settings()


def _read(path: Path) -> Mapping[str, Any] | None:
    """The settings of a file; None for a pyproject.toml that has none."""
    import tomllib  # noqa: PLC0415  most runs have no file to read

    try:
        whole = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as problem:
        raise UsageError(f"config: {path} cannot be read: {problem}", hint="correct it") from None
    tool = whole.get("tool", {})
    values = tool.get("onnxfuse") if isinstance(tool, dict) else None
    if values is None and path.name == FILES[0]:
        values = whole
    if values is not None and not isinstance(values, dict):
        raise UsageError(f"config: [tool.onnxfuse] of {path} is not a table", hint="give it keys such as strategy")
    return values


def flags_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a verb, by name without dashes."""
    return {p.opts[-1].lstrip("-"): p for p in command.params if isinstance(p, click.Option)}


def default_map(settings: Settings, verbs: Mapping[str, click.Command]) -> dict[str, dict[str, Any]]:
    """For each verb, the values of its flags. Raises UsageError for a key that is a flag of no verb."""
    flags = {name: flags_of(command) for name, command in verbs.items()}
    known = sorted({each for found in flags.values() for each in found})
    made: dict[str, dict[str, Any]] = {name: {} for name in verbs}
    for key, value in settings.values.items():
        name = key.replace("_", "-")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "keys are the names of flags without dashes"
            raise UsageError(f"config: {settings.path} sets {key}, which is not a flag", hint=hint)
        for verb, found in flags.items():
            option = found.get(name)
            if option is not None:
                made[verb][str(option.name)] = _value(settings, key, value, option)
    return made


def of_verbs(
    root: click.Context, verbs: Mapping[str, click.Command], known: Collection[str]
) -> dict[str, dict[str, tuple[Any, str]]]:
    """For each verb the values of its flags that are not in `known`, with their sources in click.

    Raises click's UsageError for a value that its flag does not take.
    """
    found: dict[str, dict[str, tuple[Any, str]]] = {}
    for name, command in verbs.items():
        with command.make_context(name, [], parent=root, resilient_parsing=True) as context:
            for flag, option in flags_of(command).items():
                source = context.get_parameter_source(str(option.name))
                if option.envvar and option.name not in known and source is not None:
                    value = context.params.get(str(option.name))
                    if source in (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP):  # it may be invalid
                        value = option.type_cast_value(context, option.consume_value(context, {})[0])
                    found.setdefault(name, {})[flag] = (value, source.name.lower())
    return found


def unknown_variables(environment: Mapping[str, str], verbs: Mapping[str, click.Command]) -> list[tuple[str, str]]:
    """Environment variables with our prefix that set nothing, each with a similar one, or ""."""
    known = {str(p.envvar) for command in verbs.values() for p in command.params if getattr(p, "envvar", None)}
    known |= set(OTHERS)
    found = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    return [(name, next(iter(difflib.get_close_matches(name, known, 1)), "")) for name in found]


def _value(settings: Settings, key: str, value: Any, option: click.Option) -> Any:
    """A value in the form that click expects. Raises UsageError."""
    kinds = (str, int, float, bool)
    if option.multiple:
        many = value if isinstance(value, list) else [value]
        if all(isinstance(each, kinds) for each in many):
            return many
    elif isinstance(value, kinds):
        if option.is_flag and not isinstance(value, bool):
            raise UsageError(f"config: {key} of {settings.path} is not true or false", hint="correct it")
        return value
    raise UsageError(f"config: {key} of {settings.path} has a value of the wrong type", hint="correct it")
