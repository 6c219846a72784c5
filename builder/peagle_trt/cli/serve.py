"""`peagle-trt serve`: a Triton server for one build, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from peagle_trt.cli.door_options import door_options, read_door_settings
from peagle_trt.cli.options import FOLDER, served_prompt_lookup_option
from peagle_trt.cli.output import Output

PORT = click.IntRange(1, 65535)


@click.command("serve")
@click.argument("path", metavar="BUILD", type=FOLDER)
@click.option("--http-port", type=PORT, default=8000, show_default=True, help="Port of the HTTP door.")
@click.option("--grpc-port", type=PORT, default=8001, show_default=True, help="Port of the gRPC door.")
@click.option("--metrics-port", type=PORT, default=8002, show_default=True, help="Port of the Prometheus metrics.")
@click.option("--log-dir", "log_path", type=FOLDER, help="Folder for the server's log; a temporary one by default.")
@click.option("--profile", type=click.Choice(["cpu"]), help="Serve a repository's second build, for CPUs.")
@served_prompt_lookup_option
@door_options
@click.pass_obj
def command(
    output: Output,
    /,
    path: Path,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    log_path: Path | None,
    profile: str | None,
    prompt_lookup: bool,
    **door: Any,
) -> None:
    """Serve BUILD, a build or a repository made by `peagle-trt repo`, on the loopback interface.

    Runs in the foreground. Ctrl-C and SIGTERM stop the server in order, and the command then ends with exit code 0.
    """
    from peagle_trt.deploy.hosting.settings import HostSettings
    from peagle_trt.deploy.ports import choose_ports
    from peagle_trt.deploy.serving import require_servable, serve

    settings = read_door_settings(**door)
    host_settings = HostSettings(default_prompt_lookup=prompt_lookup) if prompt_lookup else None
    require_servable(path, profile, host_settings)
    ports = choose_ports(http_port, grpc_port, metrics_port)
    open_door = None
    if settings is not None:
        from peagle_trt.openai_door.opening import prepare_door

        open_door = prepare_door(settings, output.progress)
    serve(
        path,
        ports,
        log_folder=log_path,
        report=output.progress,
        open_door=open_door,
        profile=profile,
        settings=host_settings,
    )
    output.result({"stopped": True}, "stopped")
