"""Several answers to one prompt, asked for twice, on a server that keeps what a slot has read."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.deploy.client import HttpClient
from peagle_trt.deploy.hosting.settings import HostSettings
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.deploy.server import TritonServer
from tests.integration.triton.conftest import Served

GROUP = {
    "text_input": "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:",
    "max_tokens": 24,
    "num_return_sequences": 3,
    "temperature": 1.0,
    "seed": 5,
}


def test_a_second_group_goes_on_from_the_slots_of_the_first(served: Served, tiny_build: Path, tmp_path: Path) -> None:
    settings = HostSettings(reuse_prefixes=True)
    repository = assemble_repository(tiny_build, tmp_path / "repository", settings=settings).path
    with TritonServer(repository, choose_ports(), log_path=tmp_path / "tritonserver.log") as server:
        reusing = Served(server=server, http=HttpClient(server.ports.http))
        reused, answers = [], []
        for _ in range(2):
            answers.append(reusing.http.generate(GROUP))
            reused.append(reusing.settled_metrics()["peagle_reused_input_tokens_total"])
    # The prompt's last token is always read: by all three, and in the first group by the first with all before it.
    num_rows = answers[0]["num_input_tokens"] - 1
    assert reused == [2 * num_rows, 5 * num_rows]
    wanted = served.http.generate(GROUP)["text_output"]
    assert [answer["text_output"] for answer in answers] == [wanted, wanted]
