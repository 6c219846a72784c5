"""A hub on loopback: the few addresses that a download needs, and the ways in which a real one fails."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """What the hub holds, how it misbehaves, and what it was asked.

    Attributes:
        repositories: Content by file name, by repository.
        statuses: Answers of the listing that are errors, by repository: status, and the hub's `X-Error-Code`.
        listings: Listings to send instead of the true ones, by repository.
        listing_text: Sent for every listing instead of JSON.
        cuts: How often the body of a file is cut short after half of what was asked for.
        resets: A cut connection is reset instead of closed.
        corrupted: Files whose content is sent with one byte changed.
        seconds_a_chunk: Pause after each chunk of a body.
        ignores_ranges: Sends whole files, whatever part was asked for.
        requests: Method, path and Range header of every request.
    """

    repositories: dict[str, dict[str, bytes]]
    statuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    listings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    listing_text: bytes = b""
    cuts: dict[str, int] = field(default_factory=dict)
    resets: bool = False
    corrupted: set[str] = field(default_factory=set)
    seconds_a_chunk: float = 0.0
    ignores_ranges: bool = False
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    address: str = ""

    def ranges_of(self, name: str) -> list[str]:
        """Range headers of the requests for a file's content."""
        return [asked for method, path, asked in self.requests if method == "GET" and path.endswith(f"/{name}")]


def list_file(name: str, content: bytes) -> dict[str, Any]:
    """A file as the hub lists it; safetensors are large files."""
    item: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_id(content)}
    if name.endswith(".safetensors"):
        digest = hashlib.sha256(content).hexdigest()
        item["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
    return item


def git_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


@contextmanager
def serve_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve until the body ends."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away here as they please."""


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.hub.requests.append((self.command, self.path, self.headers.get("Range", "")))
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/[^/]+", path):
            self._answer_api(match[1], match[2])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._answer_file(self.hub.repositories[match[1]][match[2]], match[2])
        else:
            self._answer(404)

    def _answer_api(self, repository: str, kind: str) -> None:
        status, code = self.hub.statuses.get(repository, (200, ""))
        if status == 200 and repository not in self.hub.repositories:
            status, code = 404, "RepoNotFound"
        if status != 200:
            self._answer(status, headers={"X-Error-Code": code} if code else {})
            return
        files = self.hub.repositories[repository]
        listing = self.hub.listings.get(repository) or [list_file(name, content) for name, content in files.items()]
        information = {"id": repository, "sha": COMMIT, "siblings": [], "tags": []}
        body = json.dumps(listing if kind == "tree" else information).encode()
        self._answer(200, self.hub.listing_text or body)

    def _answer_file(self, content: bytes, name: str) -> None:
        if name in self.hub.corrupted:
            content = bytes([content[0] ^ 1]) + content[1:]
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match and not self.hub.ignores_ranges else 0
        body = content[start:]
        headers = {"Content-Length": str(len(body)), "ETag": f'"{git_id(content)}"', "X-Repo-Commit": COMMIT}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        is_cut = self.hub.cuts.get(name, 0) > 0
        if is_cut:
            self.hub.cuts[name] -= 1
        self._begin(206 if start else 200, headers)
        self._send_slowly(body[: len(body) // 2] if is_cut else body)
        if is_cut:
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        if self.hub.resets:
            # The client shall have read what was sent: a reset drops the rest.
            time.sleep(0.3)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def _send_slowly(self, body: bytes) -> None:
        try:
            if not self.hub.seconds_a_chunk:
                self.wfile.write(body)
                return
            for start in range(0, len(body), 1 << 16):
                self.wfile.write(body[start : start + (1 << 16)])
                time.sleep(self.hub.seconds_a_chunk)
        except OSError:
            # The client went away, as tests make it do.
            self.close_connection = True

    def _answer(self, status: int, body: bytes = b"{}", headers: dict[str, str] | None = None) -> None:
        self._begin(status, {"Content-Length": str(len(body)), "Content-Type": "application/json", **(headers or {})})
        self.wfile.write(body)

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
