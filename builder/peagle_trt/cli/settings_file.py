"""`--config FILE`: a TOML file whose keys are the long options of one command."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

import click

from peagle_trt.errors import UsageError

# What TOML may hold for an option, by the name of the option's type.
_EXPECTED: Mapping[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number"),
    "integer range": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "float range": ((int, float), "a number"),
    "number list": ((int, str), "a whole number or a list of them"),
}
_TEXT = ((str,), "text")
_FOUND = {bool: "a truth value", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "a table"}


def load_settings(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Make a TOML file's keys the defaults of the other options; click then puts what was typed above them.

    Raises:
        UsageError: The file cannot be read, or a key is unknown, or a value does not suit its option.
    """
    if path is None:
        return None
    options = {_key(option): option for option in context.command.params if _is_setting(option)}
    defaults: dict[str, object] = {}
    for key, value in _read(path).items():
        option = _find(path, key, options)
        if option.name in defaults:
            raise UsageError(f"`{path}` has the key `{_key(option)}` twice, spelled with `-` and with `_`")
        defaults[str(option.name)] = _check(path, key, value, option, context)
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from error
    except RecursionError as error:
        raise UsageError(f"cannot read `{path}`: its values are nested too deeply") from error


def _is_setting(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not parameter.is_eager


def _key(option: click.Parameter) -> str:
    return next(word for word in option.opts if word.startswith("--")).removeprefix("--")


def _find(path: Path, key: str, options: Mapping[str, click.Parameter]) -> click.Parameter:
    spelled = key.replace("_", "-")
    if spelled in options:
        return options[spelled]
    close = difflib.get_close_matches(spelled, options, n=1, cutoff=0.65)
    hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(sorted(options))}"
    raise UsageError(f"`{path}` has the unknown key `{key}`", hint=hint)


def _check(path: Path, key: str, value: object, option: click.Parameter, context: click.Context) -> object:
    kinds, words = _EXPECTED.get(option.type.name, _TEXT)
    found = f"`{path}`: `{key}` is `{json.dumps(value, default=str, ensure_ascii=False)}`"
    parts = value if isinstance(value, list) and option.type.name == "number list" else [value]
    if not all(_is_a(part, kinds) for part in parts):
        raise UsageError(f"{found}, {_name(value)}; expected {words}")
    try:
        option.type_cast_value(context, value)
    except click.BadParameter as error:
        raise UsageError(f"{found}: {error.message.rstrip('.')}") from error
    return value


def _is_a(value: object, kinds: tuple[type, ...]) -> bool:
    # A bool is an int to Python, and to nobody else.
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)


def _name(value: object) -> str:
    return _FOUND.get(type(value), "a date or time")
