"""The server of the page: on the loopback interface, for who has the token."""

from __future__ import annotations

import hmac
import http.server
import json
import os
import secrets
import select
import socket
import threading
import time
import urllib.parse

from ..export import points, texts
from ..store import reader, runs
from . import document, page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
MOST_CONNECTIONS = 64
MOST_FOLLOWED = 8  # runs of one page
KEPT = 32  # streams whose place is remembered
SECONDS = 1.0  # between two looks at the files
QUIET_SECONDS = 15.0  # after which a stream says that it is there
_STREAM = "text/event-stream"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# The built page names the hashes of its script and style itself; both policies hold.
_POLICY_OF_PAGE = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; {_POLICY_OF_PAGE}"


class Refused(Exception):
    """With the status and what is said of it."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status


class Stream:
    """What one page follows, and how far it is. The id of a message names both: a page whose connection broke continues
    from there, and gets everything again where a message was lost."""

    def __init__(self, found: dict[str, str]):
        self.key, self.count = secrets.token_hex(8), 0
        self.names = sorted(found)
        self._followers = [document.Follower(path) for path in found.values()]
        self._states: dict[str, str] = {}
        self._listed: list[str] | None = None

    def messages(self, every: list[str]) -> list[tuple[str, Any]]:
        """(kind, data) of what is new. every: the runs that there are, the newest first."""
        found: list[tuple[str, Any]] = []
        if every != self._listed:
            self._listed = every
            found.append(("runs", every))
        for one in self._followers:
            new = one.changes()
            is_new = self._states.get(one.run) != new["state"]
            self._states[one.run] = new["state"]
            if (
                is_new
                or "settings" in new
                or any(p["series"] or p["events"] or p.get("trouble") for p in new["processes"])
            ):
                found.append(("run", new))
        return found

    def id(self) -> str:
        return f"{self.key}:{self.count}"


class Server(http.server.ThreadingHTTPServer):
    """path: a run, or a folder of runs. Raises OSError where the port cannot be had."""

    daemon_threads = True

    def __init__(self, path: str, port: int):
        self.path, self.token = path, secrets.token_urlsafe(24)
        self.is_ending = threading.Event()
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}
        super().__init__((HOST, port), Handler)

    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/?token={self.token}"

    def runs(self) -> dict[str, str]:
        """{name: path}, the newest first. Pages name runs by these names only."""
        return {os.path.basename(os.path.abspath(run)): run for run in runs.found(self.path)}

    def stream(self, last_id: str, found: dict[str, str]) -> Stream:
        """That of the id, else one that begins."""
        key, _, count = last_id.partition(":")
        with self._lock:
            stream = self._streams.pop(key, None)
            if stream is None or str(stream.count) != count or stream.names != sorted(found):
                stream = Stream(found)
            return stream

    def keep(self, stream: Stream) -> None:
        """Its connection broke."""
        with self._lock:
            self._streams[stream.key] = stream
            while len(self._streams) > KEPT:
                del self._streams[next(iter(self._streams))]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that goes away is no failure, and a failure of one answer is not one of the others."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "finitude", ""
    timeout = 30  # seconds for a request to arrive

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        try:
            path, _, query = self.path.partition("?")
            asked = urllib.parse.parse_qs(query, max_num_fields=64)
            self._check(asked)
            answer = {"/": self._page, "/events": self._events, "/maps": self._maps, "/metrics": self._metrics}.get(
                path
            )
            if answer is None:
                raise Refused(404, "there is no such page")
            answer(asked)
        except Refused as e:
            self._send(e.status, "text/plain", f"finitude: {e}\n")
        except ValueError:
            self._send(400, "text/plain", "finitude: the request cannot be read\n")

    def _check(self, asked):
        """Another name would be that of a site whose name leads to this machine."""
        host, _, port = (self.headers.get("Host") or "").rpartition(":")
        if host not in NAMES or port != str(self.server.server_address[1]):
            raise Refused(403, "this server answers at 127.0.0.1 and localhost only")
        given = (asked.get("token") or [""])[0]
        kind, _, bearer = (self.headers.get("Authorization") or "").partition(" ")
        given = bearer.strip() if kind.lower() == "bearer" else given
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            raise Refused(401, "the token is missing or wrong: use the address that `finitude live` printed")

    def _send(self, status, kind, text, policy=_POLICY):
        data = text.encode()
        self.send_response(status)
        self._head({"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data))}, policy)
        self.wfile.write(data)

    def _head(self, more, policy):
        for name, value in {**more, **_HEADERS, "Content-Security-Policy": policy}.items():
            self.send_header(name, value)
        self.end_headers()

    def _runs(self, asked):
        """Those asked for, else the newest: {name: path}."""
        every = self.server.runs()
        names = [name for name in asked.get("run", []) if name in every] or list(every)[:1]
        return {name: every[name] for name in names[:MOST_FOLLOWED]}

    def _page(self, asked):
        template = page.built()
        if template is not None:
            title = "finitude: " + (next(iter(self.server.runs()), "") or "live")
            return self._send(200, "text/html", page.filled(template, title, {"live": True}), _POLICY_OF_PAGE)
        found = next(iter(self._runs(asked).values()), None)
        if found is None:
            raise Refused(404, "there is no run here yet")
        return self._send(200, "text/html", page.table(document.Follower(found).changes()))

    def _maps(self, asked):
        found = next(iter(self._runs(asked).values()), None)
        self._send(200, "application/json", json.dumps(document.maps(found) if found else [], allow_nan=False))

    def _metrics(self, asked):
        newest = texts.Newest()
        for name, path in self._runs(asked).items():
            try:
                for process in points.processes(path):
                    texts.add_newest(newest, name, process, has_time=False)
            except (OSError, reader.Unreadable):
                continue
        self._send(200, "text/plain; version=0.0.4", newest.text())

    def _events(self, asked):
        found = self._runs(asked)
        stream = self.server.stream(self.headers.get("Last-Event-ID") or "", found)
        self.send_response(200)
        self._head({"Content-Type": _STREAM, "Connection": "close"}, _POLICY)
        self.close_connection = True
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        is_named = bool(asked.get("run"))
        said = time.monotonic()
        try:
            while not self.server.is_ending.is_set():
                every = list(self.server.runs())
                for kind, data in stream.messages(every):
                    stream.count += 1
                    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
                    self.wfile.write(f"id: {stream.id()}\nevent: {kind}\ndata: {text}\n\n".encode())
                    said = time.monotonic()
                if time.monotonic() - said > QUIET_SECONDS:
                    self.wfile.write(b": here\n\n")
                    said = time.monotonic()
                self.wfile.flush()
                if not is_named and every[:1] != list(found):
                    return  # a run began: the page asks again, and gets that one
                self.server.is_ending.wait(SECONDS)
                if select.select([self.connection], [], [], 0)[0]:
                    return  # a page that has sent its request sends nothing more: it has gone
        finally:
            self.server.keep(stream)
