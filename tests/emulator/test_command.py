"""The command line, tokens, and HTTP by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request

import pytest
from click.testing import CliRunner

from kombu_paired.emulator import Emulator, Policy
from kombu_paired.emulator.broker.errors import Refusal
from kombu_paired.emulator.server.command import emulator as command
from kombu_paired.emulator.server.http import HttpConnection, HttpRequest, HttpResponse
from kombu_paired.emulator.server.tokens import Claims, Grant, Policies


def test_it_listens_says_where_and_ends_on_a_signal() -> None:
    options = ["--port", "0", "--queue", "orders?requires_session=true&lock_duration=5", "--topic", "news:a,b"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kombu_paired.emulator", *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert "For demos and tests" in process.stdout.readline()
        endpoint = process.stdout.readline()
        assert "UseDevelopmentEmulator=true" in endpoint
        host = endpoint.split("sb://")[1].split(";")[0]
        with urllib.request.urlopen(f"http://{host}/$emulator/status", timeout=20) as answer:
            status = json.load(answer)
        assert set(status["queues"]) == {"orders"}
        assert set(status["topics"]["news"]) == {"a", "b"}
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()


@pytest.mark.parametrize(
    "options", [["--queue", "-bad"], ["--queue", "q?colour=red"], ["--policy", "nokey"], ["--policy", "a:b:Rule"]]
)
def test_mistakes_are_explained(options: list[str]) -> None:
    result = CliRunner().invoke(command, ["--port", "0", *options])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")


def test_a_port_in_use_is_explained() -> None:
    with Emulator() as running:
        result = CliRunner().invoke(command, ["--port", str(running.port)])
    assert "in use" in result.output


def token(policy: Policy, expiry: int, signature: str | None = None) -> str:
    audience = "sb%3A%2F%2Fhost%2Fq"
    quoted = urllib.request.quote(signature or policy.sign(audience, expiry), safe="")
    return f"SharedAccessSignature sr={audience}&sig={quoted}&se={expiry}&skn={policy.name}"


def test_tokens() -> None:
    policy = Policy.parse("reader:a/+=b==:listen")
    policies = Policies([policy], lambda: 1000.0)
    assert policies.grant(token(policy, 1001), "q") == ({"Listen"}, 1001)
    for bad, said in (
        (token(policy, 999), "ExpiredToken"),
        (token(policy, 1001, "x"), "InvalidSignature"),
        (token(Policy("other", "k"), 1001), "InvalidSignature"),
        ("Bearer x", "no shared access signature"),
        ("", "no shared access signature"),
    ):
        with pytest.raises(Refusal, match=said):
            policies.grant(bad, "q")
    with pytest.raises(Refusal, match="InvalidAudience"):
        policies.grant(token(policy, 1001), "other")
    assert "Manage" in Policies([], time.time).grant("anything", "q").rights
    assert Policies([policy], lambda: 1000.0, 0.5).grant(token(policy, 1001), "q").until == 1000.5


def test_claims_are_those_of_tokens_that_have_not_expired() -> None:
    now = 0.0
    claims = Claims(lambda: now)
    assert not claims.have_expired("q")
    claims.add("q", Grant(frozenset({"Send"}), 2.0))
    claims.add("Q/$management", Grant(frozenset({"Listen"}), 1.0))
    assert (claims.at("q"), claims.at("Q/$Management"), claims.at("other")) == ({"Send"}, {"Send", "Listen"}, set())
    now = 1.0
    assert claims.at("q/$management") == {"Send"}
    assert not claims.have_expired("q/$management")
    now = 2.0
    assert claims.have_expired("q")
    assert not claims.have_expired("other")
    claims.add("q", Grant(frozenset({"Send"}), 3.0))
    assert not claims.have_expired("q")


def test_a_policy_is_written_as_it_is_read() -> None:
    for text in ("root:a/+=key==:Listen,Manage,Send", "reader:k:Listen", "worker:k:Listen,Send:orders/urgent"):
        assert str(Policy.parse(text)) == text


class Wire:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.written += b"<closed>"


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_http_arrives_in_any_pieces(step: int) -> None:
    wire, seen = Wire(), []

    def answer(request: HttpRequest, respond: object) -> None:
        seen.append((request.method, request.path, request.query, request.body))
        respond(HttpResponse(200, b"ok"))  # type: ignore[operator]

    connection = HttpConnection(wire, answer)
    stream = (
        b"PUT /a%2Fb?x=1&$top=5 HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
        b"PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    for start in range(0, len(stream), step):
        connection.feed(stream[start : start + step])
    assert seen == [
        ("PUT", "/a/b", {"x": "1", "$top": "5"}, b"body"),
        ("PUT", "/c", {}, b"abcde"),
        ("GET", "/", {}, b""),
    ]
    assert wire.written.count(b"200 OK") == 3
