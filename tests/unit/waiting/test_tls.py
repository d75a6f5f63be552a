"""Failures of TLS: the same kind on every broker, and what an operator can do, with real handshakes."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from redis import exceptions

from kombu_paired.brokers import tls
from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.cli import main
from kombu_paired.cli.sides import Side
from kombu_paired.emulator.wire.tls import Certificate
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from tests.support.peers import TRICKLING, peer, rabbitmq, redis_server, stay_silent

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="making a certificate needs openssl")

#: URL scheme -> how its driver is told the authorities, and a broker that lets one in.
BROKERS = {"amqps": "{}", "rediss": "ssl_{}"}
TIMEOUT = 2.0
#: Seconds for what is refused at once, on a busy machine too.
PLENTY = 30.0
AWAY = {FailureKind.UNREACHABLE}
brokers = pytest.mark.parametrize("scheme", BROKERS)


@pytest.fixture(scope="module")
def certificate():
    made = Certificate.make("localhost")
    yield made
    made.remove()


@pytest.fixture(scope="module")
def other():
    made = Certificate.make("localhost")
    yield made
    made.remove()


#: ``openssl req`` makes none that begins in the past.
AUTHORITY = """
[ca]
default_ca = past
[past]
database = index
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
x509_extensions = names
default_startdate = 20200101000000Z
default_enddate = 20200102000000Z
[any]
commonName = supplied
[names]
subjectAltName = DNS:localhost
"""


@pytest.fixture(scope="module")
def expired(tmp_path_factory):
    folder = tmp_path_factory.mktemp("expired")
    (folder / "authority").write_text(AUTHORITY)
    (folder / "index").touch()
    (folder / "serial").write_text("01")
    for command in (
        "req -new -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out request",
        "ca -selfsign -batch -config authority -keyfile key.pem -in request -out certificate.pem",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return Certificate(folder)


def over_tls(certificate, behave):
    def shake_hands(connection):
        with certificate.context.wrap_socket(connection, server_side=True) as wrapped:
            behave(wrapped)

    return shake_hands


def failure_at(scheme, port, ca, host="localhost", timeout=PLENTY, **more):
    options = {"ca_certs": str(ca.path), "cert_reqs": ssl.CERT_REQUIRED, **more}
    named = {BROKERS[scheme].format(name): value for name, value in options.items()}
    namespace = KombuNamespace(
        "primary", [f"{scheme}://{host}:{port}"], {}, send_timeout=timeout, connect_arguments={"ssl": named}
    )
    with pytest.raises(NamespaceFailure) as caught:
        namespace.sender().send(Message(b"x", routing_key="orders"), timeout)
    return caught.value


@brokers
def test_a_certificate_of_an_unknown_authority_is_an_outage(scheme, certificate, other):
    with peer(over_tls(certificate, stay_silent)) as port:
        failure = failure_at(scheme, port, other)
    assert (failure.kind, failure.whole_namespace) == (FailureKind.UNREACHABLE, True)
    assert "certificate cannot be verified: self-signed certificate. Name the authority" in str(failure)


@brokers
def test_an_expired_certificate_is_an_outage_and_says_so(scheme, expired):
    with peer(over_tls(expired, stay_silent)) as port:
        failure = failure_at(scheme, port, expired)
    assert (failure.kind, failure.whole_namespace) == (FailureKind.UNREACHABLE, True)
    assert str(failure).startswith(f"primary namespace {scheme}://localhost:{port}")
    assert str(failure).endswith("certificate has expired. Renew it (or mend the clock of this machine).")


@brokers
def test_a_certificate_for_another_name_is_an_outage(scheme, certificate):
    host, more = "127.0.0.1", {"server_hostname": "elsewhere"}
    if scheme == "rediss":
        host, more = "127.0.0.2", {"check_hostname": True}
    with peer(over_tls(certificate, stay_silent), host) as port:
        failure = failure_at(scheme, port, certificate, host, **more)
    assert failure.kind is FailureKind.UNREACHABLE
    assert "Connect by a name that it holds" in failure.advice


@brokers
def test_a_port_that_speaks_no_tls_is_an_outage(scheme, certificate):
    def speak_http(connection):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with peer(speak_http) as port:
        failure = failure_at(scheme, port, certificate)
    assert failure.kind is FailureKind.UNREACHABLE
    assert "does this port speak TLS" in failure.advice


@brokers
def test_a_peer_that_keeps_a_link_over_tls_waiting_takes_no_longer_than_the_timeout(scheme, certificate):
    with ThreadPoolExecutor() as threads:  # they wait side by side
        steps = ["the handshake", "the login", "the send"]
        list(threads.map(lambda at: keep_waiting(scheme, certificate, at), steps))


def keep_waiting(scheme, certificate, at):
    then = {"amqps": {(60, 40): TRICKLING}, "rediss": {b"LPUSH": TRICKLING}}[scheme]
    if at == "the login":
        then = {"amqps": {(10, 40): TRICKLING}, "rediss": {b"PING": TRICKLING}}[scheme]
    behave = over_tls(certificate, (rabbitmq if scheme == "amqps" else redis_server)(then))
    with peer(stay_silent if at == "the handshake" else behave) as port:
        began = time.monotonic()
        failure = failure_at(scheme, port, certificate, timeout=TIMEOUT)
        assert time.monotonic() - began < 1.9 * TIMEOUT, at  # a step with a budget of its own would take as long again
    assert failure.kind in ({FailureKind.TIMEOUT} if at == "the send" and failure.maybe_stored else AWAY), at


def test_check_says_whose_certificate_it_is_why_and_what_to_do(expired):
    with peer(over_tls(expired, stay_silent)) as port, peer(redis_server()) as spare:
        run = CliRunner().invoke(
            main,
            [
                *(
                    "check",
                    "--primary",
                    f"rediss://localhost:{port}/0?ssl_cert_reqs=required&ssl_ca_certs={expired.path}",
                ),
                *("--secondary", f"redis://127.0.0.1:{spare}/0", "--option", "send_timeout=20"),
            ],
        )
    said = " ".join(run.output.split())
    assert run.exit_code == 1
    assert f"The primary rediss://localhost:{port}/0 cannot be used" in said
    assert "certificate has expired. Renew it (or mend the clock of this machine)." in said


def test_every_error_of_tls_is_an_outage_on_every_broker_however_it_is_wrapped():
    inner = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    wrapped = LookupError("no endpoint")
    wrapped.__cause__ = inner
    for url in ("amqp://", "redis://", "sqs://", "azureservicebus://k:v@ns", "zookeeper://"):
        namespace = KombuNamespace("primary", [url], {}, send_timeout=1)
        for exc in (inner, wrapped, ssl.SSLEOFError(8, "EOF occurred"), ssl.CertificateError("no")):
            assert namespace.kind_of(exc) is FailureKind.UNREACHABLE
        assert namespace.kind_of(ssl.SSLError("The read operation timed out")) is FailureKind.TIMEOUT


def test_an_error_that_only_came_after_one_of_tls_is_its_own():
    full = exceptions.OutOfMemoryError("OOM command not allowed")
    full.__context__ = ssl.SSLError(1, "of the connection before")
    assert KombuNamespace("primary", ["redis://"], {}, send_timeout=1).kind_of(full) is FailureKind.FAULT


def test_what_to_do_is_said_where_the_driver_hides_the_certificate():
    hidden = exceptions.ConnectionError("Error 1 connecting to main:6379.")
    hidden.__context__ = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")
    assert "refuses the certificate of this client" in tls.advice_on(hidden)
    assert tls.advice_on(socket.gaierror(-2, "Name or service not known")) == ""


def test_the_command_line_says_what_to_do_about_a_certificate():
    exc = ssl.SSLCertVerificationError(1, "certificate verify failed")
    exc.verify_code, exc.verify_message = 10, "certificate has expired"
    namespace = KombuNamespace("secondary", ["amqps://spare//"], {}, send_timeout=1)

    side = Side("secondary", namespace.uri, namespace.failure(exc))

    assert "certificate has expired. Renew it" in side.advice
    assert Side("secondary", namespace.uri, namespace.failure(ConnectionRefusedError())).advice.startswith("Is it")
