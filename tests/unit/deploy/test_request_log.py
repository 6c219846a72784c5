"""What a request is called in the log."""

from __future__ import annotations

import pytest

from peagle_trt.deploy.hosting.request_log import MAX_CLIENT_NAME, request_name


@pytest.mark.parametrize(
    ("client_name", "parameters", "name"),
    [
        ("", {}, "r7"),
        ("abc", {}, "r7:abc"),
        ("", {"id": "of-generate"}, "r7:of-generate"),
        ("abc", {"id": "other"}, "r7:abc"),
        ("two\nlines é", {}, "r7:two_lines_"),
        ("x" * 200, {}, "r7:" + "x" * MAX_CLIENT_NAME),
    ],
)
def test_a_request_has_a_number_and_its_clients_name(
    client_name: str, parameters: dict[str, object], name: str
) -> None:
    assert request_name(7, client_name, parameters) == name
