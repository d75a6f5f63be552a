"""As much of HTTP/1.1 as the administration client needs: requests with a length, answers, connections that stay."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kombu_paired.emulator.wire.ends import Wire

__all__ = ("HttpConnection", "HttpRequest", "HttpResponse", "json_response")

_MAX_HEAD = 65536


@dataclass(frozen=True)
class HttpRequest:
    """A request. Header names are in lower case, the path is unquoted."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class HttpResponse:
    """An answer."""

    status: int
    body: bytes = b""
    content_type: str = "application/atom+xml;type=entry;charset=utf-8"

    def encode(self) -> bytes:
        """As it goes over the wire."""
        try:
            phrase = HTTPStatus(self.status).phrase
        except ValueError:
            phrase = "Unknown"
        head = [
            f"HTTP/1.1 {self.status} {phrase}",
            f"Content-Length: {len(self.body)}",
            f"Content-Type: {self.content_type}",
            "Server: kombu-paired-emulator",
        ]
        return "\r\n".join([*head, "", ""]).encode() + self.body


def json_response(value: Any, status: int = 200) -> HttpResponse:
    """An answer in JSON."""
    return HttpResponse(status, json.dumps(value).encode(), "application/json")


class HttpConnection:
    """One client; its requests are answered in turn.

    Arguments:
        wire: where the answers go.
        answer: takes a request and a function that takes the answer, now or later; None hangs up.
    """

    def __init__(
        self, wire: Wire, answer: Callable[[HttpRequest, Callable[[HttpResponse | None], None]], None]
    ) -> None:
        self._wire = wire
        self._answer = answer
        self._buffer = b""
        self._busy = False

    def feed(self, data: bytes) -> None:
        """Take what came in."""
        self._buffer += data
        while not self._busy:
            request = self._next_request()
            if request is None:
                return
            self._busy = True
            self._answer(request, partial(self._respond, request))

    def _respond(self, request: HttpRequest, response: HttpResponse | None) -> None:
        if response is None:
            self._wire.abort()
            return
        self._wire.write(response.encode())
        self._busy = False
        if request.headers.get("connection", "").lower() == "close":
            self._wire.close()
        elif self._buffer:
            self.feed(b"")

    def _next_request(self) -> HttpRequest | None:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            if len(self._buffer) > _MAX_HEAD:
                self._wire.close()
            return None
        lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":")[::2] for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        try:
            method, url, _ = lines[0].split(" ")
            body = self._body(headers, rest)
            if body is None:
                return None
        except ValueError:
            self._buffer = b""
            self._wire.write(HttpResponse(400).encode())
            self._wire.close()
            return None
        parts = urlsplit(url)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        return HttpRequest(method.upper(), unquote(parts.path), query, headers, body)

    def _body(self, headers: dict[str, str], rest: bytes) -> bytes | None:
        """The whole body, which is then out of the buffer; None when more has to come."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks(rest)
        length = int(headers.get("content-length") or 0)
        if len(rest) < length:
            if headers.pop("expect", "").lower() == "100-continue" and not rest:
                self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None
        self._buffer = rest[length:]
        return rest[:length]

    def _chunks(self, rest: bytes) -> bytes | None:
        body = b""
        while True:
            size, separator, rest = rest.partition(b"\r\n")
            if not separator:
                return None
            length = int(size.split(b";")[0] or b"0", 16)
            if len(rest) < length + 2:
                return None
            body, rest = body + rest[:length], rest[length + 2 :]
            if length == 0:
                self._buffer = rest
                return body

    def lost(self) -> None:
        """The client is gone."""
