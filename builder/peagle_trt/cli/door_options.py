"""The options of `peagle-trt serve` for the OpenAI door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from peagle_trt.cli.options import FILE
from peagle_trt.errors import UsageError

if TYPE_CHECKING:
    from peagle_trt.openai_door.settings import DoorSettings

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_PORT = click.IntRange(1, 65535)
_OPTIONS = (
    click.option("--openai", "is_open", is_flag=True, help="Open a door for clients of OpenAI's API, too."),
    click.option("--openai-host", help="Its address; 127.0.0.1 by default."),
    click.option("--openai-port", type=_PORT, help="Its port; 9000 by default."),
    click.option("--api-key-file", "key_file", type=FILE, help="Keys that let clients in, one a line."),
    click.option("--tls-certificate", type=FILE, help="Certificate chain (PEM); the door then speaks HTTPS."),
    click.option("--tls-key", type=FILE, help="Private key of the certificate (PEM)."),
    click.option("--max-body-bytes", type=click.IntRange(min=1024), help="Longest request; 4 MiB by default."),
    click.option(
        "--max-answers", "max_concurrent_answers", type=click.IntRange(min=1), help="Answers at once; 64 by default."
    ),
    click.option(
        "--requests-per-minute", type=click.IntRange(min=1), help="Limit of each key, or address without keys."
    ),
)


def door_options(command: Decorated) -> Decorated:
    """Adds the options; a command takes them as `**door`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_door_settings(
    *, is_open: bool, key_file: Path | None, tls_certificate: Path | None, tls_key: Path | None, **numbers: Any
) -> DoorSettings | None:
    """Settings of the door, or None where it stays shut.

    Raises:
        UsageError: Options contradict each other, or the keys cannot be read.
    """
    from peagle_trt.openai_door.settings import DoorSettings

    given = {name: value for name, value in numbers.items() if value is not None}
    if not is_open:
        if given or key_file or tls_certificate or tls_key:
            raise UsageError("options of the OpenAI door are given and the door is not", hint="add --openai")
        return None
    if (tls_certificate is None) != (tls_key is None):
        raise UsageError("one of --tls-certificate and --tls-key is missing", hint="give both")
    names = {"openai_host": "host", "openai_port": "port"}
    return DoorSettings(
        api_keys=_read_keys(key_file) if key_file else (),
        certificate_path=tls_certificate,
        key_path=tls_key,
        **{names.get(name, name): value for name, value in given.items()},
    )


def _read_keys(path: Path) -> tuple[str, ...]:
    try:
        keys = tuple(filter(None, map(str.strip, path.read_text(encoding="utf-8").splitlines())))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the keys in `{path}` cannot be read: {error}") from error
    if not keys:
        raise UsageError(f"`{path}` holds no key", hint="write one key a line")
    return keys
