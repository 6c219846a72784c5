"""One request through a door of the server, without the conveniences of our own client."""

from __future__ import annotations

import http.client
import json
import queue
from typing import Any

from peagle_trt.deploy.client import grpc_outputs

from .conftest import Served


def over_grpc(served: Served, model: str, inputs: list[Any], **beside: Any) -> tuple[Any, Any]:
    """The first response of one request over a gRPC stream, or its error."""
    import tritonclient.grpc as grpc_client

    results: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client = grpc_client.InferenceServerClient(f"127.0.0.1:{served.server.ports.grpc}")
    client.start_stream(callback=lambda result, error: results.put((result, error)))
    try:
        client.async_stream_infer(model, inputs, enable_empty_final_response=True, **beside)
        result, error = results.get(timeout=60)
        return (None, error) if error is not None else (grpc_outputs(result), None)
    finally:
        client.stop_stream()
        client.close()


def post(served: Served, path: str, payload: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and body of an answer over HTTP, errors included."""
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports.http, timeout=60)
    try:
        connection.request("POST", f"/v2/models/{path}", json.dumps(payload))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
