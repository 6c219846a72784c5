"""`peagle-trt serve --openai` as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai

from peagle_trt.deploy.client import HttpClient
from peagle_trt.deploy.ports import choose_ports

START_SECONDS = 120


def test_serve_opens_the_door_hands_its_settings_on_and_closes_it_in_order(tiny_build: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first\n\nsecond\n")
    ports, door_port = choose_ports(), choose_ports().http
    words = [f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
    words += ["--prompt-lookup", "--openai", f"--openai-port={door_port}", f"--api-key-file={keys}"]
    program = "from peagle_trt.cli.main import main; main()"
    serving = subprocess.Popen([sys.executable, "-c", program, "serve", str(tiny_build), *words])
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(door_port) and serving.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{door_port}/v1", api_key="second", max_retries=0)
        answer = client.completions.create(model="tiny", prompt="2 + 3", max_tokens=3)
        assert answer.choices[0].text
        parameters = HttpClient(ports.http).model_config()["parameters"]
        assert parameters["default_prompt_lookup"]["string_value"] == "true"
    finally:
        serving.send_signal(signal.SIGTERM)
    assert serving.wait(60) == 0
    assert not is_ready(door_port)


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=10).status_code == 200
    except httpx.TransportError:
        return False
