"""A small client of the served models: one answer, or an answer piece by piece, over HTTP and over gRPC."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from peagle_trt.deploy.ports import LOOPBACK
from peagle_trt.errors import PeagleError, RequestError
from peagle_trt_repo.outputs import shaped
from peagle_trt_repo.tensors import ENSEMBLE_INPUTS, PEAGLE_INPUTS

REQUEST_TIMEOUT_SECONDS = 600.0

Payload = Mapping[str, object]

_LISTS = ("output_ids", "output_log_probs", "top_token_ids", "top_log_probs")
_DATA_TYPES = {field.name: field.data_type for field in (*PEAGLE_INPUTS, *ENSEMBLE_INPUTS)}


class HttpClient:
    """Talks to `/generate` and `/generate_stream`.

    Args:
        port: HTTP port of the server.
        host: Its address.
        limit_seconds: Longest time for a streamed answer, however busy it looks; None waits for its next piece only.
    """

    def __init__(self, port: int, *, host: str = LOOPBACK, limit_seconds: float | None = None) -> None:
        self._host = host
        self._port = port
        self._limit_seconds = limit_seconds

    def generate(self, payload: Payload, *, model: str = "peagle") -> dict[str, Any]:
        """One answer.

        Args:
            payload: Inputs by name.
            model: `peagle` or `ensemble`.

        Raises:
            RequestError: The server refused it.
        """
        connection, response = self._post(f"/v2/models/{model}/generate", payload)
        try:
            return _checked(_parsed(response), response.status)
        finally:
            connection.close()

    def model_config(self, *, model: str = "peagle") -> dict[str, Any]:
        """The configuration of a served model.

        Raises:
            PeagleError: No server answers.
            RequestError: It has no such model.
        """
        connection, response = self._send("GET", f"/v2/models/{model}/config")
        try:
            body = _parsed(response)
        except PeagleError as error:
            raise PeagleError(f"what answers on `{self._host}:{self._port}` is no Triton server") from error
        finally:
            connection.close()
        return _checked(body, response.status)

    def generate_stream(self, payload: Payload, *, model: str = "peagle") -> Iterator[dict[str, Any]]:
        """The pieces of an answer as they come; closing the iterator early tells the server to stop.

        Args:
            payload: Inputs by name; `stream` is set.
            model: `peagle` or `ensemble`.

        Raises:
            RequestError: The server refused it.
            PeagleError: The answer broke off; a server that loses its model ends a stream as if it were whole.
        """
        limit = TimeLimit(self._limit_seconds)
        connection, response = self._post(f"/v2/models/{model}/generate_stream", {**payload, "stream": True}, limit)
        piece: dict[str, Any] = {}
        try:
            if response.status != http.client.OK:
                _checked(_parsed(response), response.status)
            for line in response:
                if line.startswith(b"data:"):
                    piece = _checked(json_object(line[len(b"data:") :], response.status), response.status)
                    yield piece
            if "finish_reason" not in piece:
                raise PeagleError("the server broke an answer off: its last piece never came")
        finally:
            limit.lift()
            response.close()
            connection.close()

    def _post(
        self, path: str, payload: Payload, limit: TimeLimit | None = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        return self._send("POST", path, json.dumps(payload), limit)

    def _send(
        self, verb: str, path: str, body: str | None = None, limit: TimeLimit | None = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        # One connection a request: an idle one would keep the server from stopping.
        seconds = self._limit_seconds or REQUEST_TIMEOUT_SECONDS
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        try:
            connection.connect()
            if limit is not None:
                limit.set_on(connection.sock)
            connection.request(verb, path, body, {"Content-Type": "application/json"})
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            if limit is not None:
                limit.lift()
            connection.close()
            raise PeagleError(f"no server answers on `{self._host}:{self._port}`: {error}") from error


class TimeLimit:
    """Ends a connection when its time is over. A server that sends now and then never meets a socket's own limit.

    Args:
        seconds: From now on; None sets no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._timer: threading.Timer | None = None

    def set_on(self, connected: socket.socket) -> None:
        """Limit a connection that was just made."""
        if self._end is not None:
            self._timer = threading.Timer(self._end - time.monotonic(), _shut, (connected,))
            self._timer.daemon = True
            self._timer.start()

    def lift(self) -> None:
        """The work is done."""
        if self._timer is not None:
            self._timer.cancel()


def _shut(connected: socket.socket) -> None:
    # Whoever reads from it sees its end at once; it may have been closed this very moment.
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def read_metrics(port: int) -> dict[str, float]:
    """The numbers of the server's metrics port, summed over labels.

    Args:
        port: Metrics port of the server.
    """
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=REQUEST_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return values


class GrpcStream:
    """One answer over a gRPC stream; a context manager, because an open stream keeps the server from stopping.

    Args:
        port: gRPC port of the server.
        payload: Inputs by name.
        model: `peagle` or `ensemble`.
        host: Address of the server.
        limit_seconds: Longest time for the answer; None waits for its next piece only.
    """

    def __init__(
        self,
        port: int,
        payload: Payload,
        *,
        model: str = "peagle",
        host: str = LOOPBACK,
        limit_seconds: float | None = None,
    ) -> None:
        import tritonclient.grpc as grpc_client

        self._end = None if limit_seconds is None else time.monotonic() + limit_seconds
        self._results: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._client = grpc_client.InferenceServerClient(f"{host}:{port}")
        self._client.start_stream(callback=lambda result, error: self._results.put((result, error)))
        self._client.async_stream_infer(model, grpc_inputs(payload), enable_empty_final_response=True)

    def __enter__(self) -> GrpcStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The pieces; `is_final` is the server's final flag.

        Raises:
            RequestError: The server refused it.
            PeagleError: The server has gone silent.
        """
        while True:
            seconds = REQUEST_TIMEOUT_SECONDS if self._end is None else max(0.0, self._end - time.monotonic())
            try:
                result, error = self._results.get(timeout=seconds)
            except queue.Empty as silence:
                raise PeagleError(f"no piece came in {seconds:.0f} s") from silence
            if error is not None:
                raise RequestError(str(error))
            piece = grpc_outputs(result)
            yield piece
            if piece["is_final"]:
                return

    def cancel(self) -> None:
        """Closes the stream; an answer that is still being written is cancelled."""
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


def grpc_model_config(
    port: int, *, host: str = LOOPBACK, model: str = "peagle", limit_seconds: float = REQUEST_TIMEOUT_SECONDS
) -> dict[str, Any]:
    """The configuration of a served model, asked over gRPC.

    Raises:
        PeagleError: No server answers in time, or it has no such model.
    """
    import tritonclient.grpc as grpc_client
    from tritonclient.utils import InferenceServerException

    client = grpc_client.InferenceServerClient(f"{host}:{port}")
    try:
        config: dict[str, Any] = client.get_model_config(model, as_json=True, client_timeout=limit_seconds)["config"]
    except InferenceServerException as error:
        raise PeagleError(f"no server answers on `{host}:{port}`: {error}") from error
    finally:
        client.close()
    return config


def _parsed(response: http.client.HTTPResponse) -> dict[str, Any]:
    try:
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise PeagleError(f"the server broke an answer off: {type(error).__name__}: {error}") from error
    # Of a stream a refusal too is an event.
    return json_object(content.strip().removeprefix(b"data:"), response.status)


def json_object(content: bytes, status: int) -> dict[str, Any]:
    """What a server answered.

    Raises:
        PeagleError: It is no JSON object.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise PeagleError(f"the server answered {status}, and no JSON object")
    return document


def _checked(body: dict[str, Any], status: int) -> dict[str, Any]:
    if status >= http.client.INTERNAL_SERVER_ERROR:
        raise PeagleError(f"the server failed: {body.get('error', body)}")
    # A decoupled model that refuses answers with status 200 and an error in the body.
    if "error" in body or status != http.client.OK:
        raise RequestError(str(body.get("error", body)))
    return _with_id_list(body)


def grpc_inputs(payload: Payload) -> list[Any]:
    """Inputs by name as the client library's tensors."""
    import tritonclient.grpc as grpc_client

    inputs = []
    for name, value in payload.items():
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        data_type = _DATA_TYPES[name]
        array = shaped([entry.encode() if isinstance(entry, str) else entry for entry in values], data_type)
        tensor = grpc_client.InferInput(name, list(array.shape), "BYTES" if data_type == "STRING" else data_type)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def grpc_outputs(result: Any) -> dict[str, Any]:
    """A response's outputs by name; `is_final` is the server's final flag."""
    response = result.get_response()
    piece: dict[str, Any] = {"is_final": response.parameters["triton_final_response"].bool_param}
    for output in response.outputs:
        values = result.as_numpy(output.name).reshape(-1).tolist()
        decoded = [value.decode() if isinstance(value, bytes) else value for value in values]
        piece[output.name] = decoded if len(decoded) != 1 else decoded[0]
    return _with_id_list(piece)


def _with_id_list(piece: dict[str, Any]) -> dict[str, Any]:
    # JSON responses of the server spell a single value without its list.
    lists = {name: [piece[name]] for name in _LISTS if isinstance(piece.get(name), (int, float))}
    return piece | lists
