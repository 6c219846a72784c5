"""Opens the door in front of a build that is being served."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Iterator
from pathlib import Path

from peagle_trt.build_folder import read_manifest
from peagle_trt.deploy.build_files import open_build_tokenizer
from peagle_trt.deploy.ports import ServerPorts
from peagle_trt.deploy.serving import OpenDoor, Report
from peagle_trt.openai_door.app import Served, make_app
from peagle_trt.openai_door.dialects import TemplateDialect
from peagle_trt.openai_door.harmony import HarmonyDialect
from peagle_trt.openai_door.harmony_vocabulary import load_encoding, speaks_harmony
from peagle_trt.openai_door.listener import DoorListener, bind
from peagle_trt.openai_door.settings import DoorSettings


def prepare_door(settings: DoorSettings, report: Report) -> OpenDoor:
    """Binds the door's socket at once, and opens the door when its server is there.

    Args:
        settings: The door's settings.
        report: Takes a line about what is going on.

    Raises:
        MachineError: The address cannot be used, or a package is missing.
        UsageError: The certificate cannot be used.
    """
    listener = bind(settings)

    @contextlib.contextmanager
    def open_door(build_path: Path, ports: ServerPorts, is_alive: Callable[[], bool]) -> Iterator[DoorListener]:
        served = describe(build_path, grpc_port=ports.grpc, is_alive=is_alive)
        with DoorListener(make_app(served, settings), settings, listener) as door:
            for line in _greeting(settings, served):
                report(line)
            yield door

    return open_door


def describe(build_path: Path, *, grpc_port: int, is_alive: Callable[[], bool]) -> Served:
    """What the door serves.

    Args:
        build_path: Folder with the build's manifest and tokenizer.
        grpc_port: Where the model server listens.
        is_alive: Whether server and model process still run.
    """
    tokenizer = open_build_tokenizer(build_path)
    is_plain = not speaks_harmony(tokenizer)
    return Served(
        manifest=read_manifest(build_path),
        tokenizer=tokenizer,
        dialect=TemplateDialect(tokenizer) if is_plain else HarmonyDialect(load_encoding(tokenizer)),
        is_plain=is_plain,
        grpc_port=grpc_port,
        is_alive=is_alive,
    )


def _greeting(settings: DoorSettings, served: Served) -> list[str]:
    scheme = "http" if settings.certificate_path is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    lines = [f"openai   {scheme}://{host}:{settings.port}/v1   model {served.manifest.name}"]
    if not settings.api_keys and not _is_loopback(settings.host):
        lines.append("warning  the OpenAI door listens beyond this machine and asks for no key; see --api-key-file")
    return lines


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
