"""A kind of broker is a class: what it can do, its links, its errors, its URLs. One more is one file and one line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kombu.transport import TRANSPORT_ALIASES, get_transport_cls

from kombu_paired.brokers.checking import check_sides, transport_class
from kombu_paired.brokers.drivers import DRIVERS, driver_named, driver_of, usual_transports
from kombu_paired.brokers.generic import Unknown
from kombu_paired.brokers.kombu import KombuNamespace, new_connection
from kombu_paired.errors import ConfigurationError
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.options import PairedNamespaceOptions
from tests.support.toy.driver import Toy, ToySender
from tests.support.toy.transport import ToyError

drivers = pytest.mark.parametrize("scheme", DRIVERS)


@drivers
def test_a_driver_is_for_a_transport_of_kombu(scheme):
    """Users may write it without "paired+", too; but nobody writes a primary that can be none."""
    assert (scheme in TRANSPORT_ALIASES) is DRIVERS[scheme].may_be_primary


def test_errors_of_what_can_be_no_primary_are_not_those_of_every_connection():
    """A primary's connection would take the application's own errors for the broker's: it may use SQLite, too."""
    assert get_transport_cls(DRIVERS["spool"].transport) not in usual_transports()


@drivers
def test_a_driver_that_is_installed_has_its_transports(scheme):
    driver = DRIVERS[scheme]
    if not driver.is_installed:
        pytest.skip(f"{driver.package} is not installed")
    for path in filter(None, (driver.transport, driver.consumer)):
        assert get_transport_cls(path).implements is not None


@drivers
def test_what_needs_a_package_says_how_it_is_installed(scheme):
    driver = DRIVERS[scheme]
    assert bool(driver.package) == bool(driver.extra)


def test_what_a_driver_can_do_is_known_without_its_package():
    program = (
        "import sys\n"
        "for name in ('redis', 'azure', 'boto3', 'sqlalchemy'): sys.modules[name] = None\n"
        "from kombu_paired.brokers.drivers import DRIVERS, driver_of\n"
        "for scheme, driver in DRIVERS.items(): driver.host_of(f'{scheme}://h'), driver.primary_name(f'{scheme}://h')\n"
        "print(*(each.port for each in DRIVERS.values()))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.startswith("5672 5671 5672 6379 6379 None")


def test_a_package_that_is_not_there_is_not_installed():
    assert not Unknown("no_such_package", "no-such-package").is_installed
    assert not Unknown("no_such_package.inside", "no-such-package").is_installed
    assert Unknown().is_installed


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("redis+socket:///tmp/redis.sock", DRIVERS["redis"]),
        ("sqla+postgresql://shop@db/shop", DRIVERS["sqla"]),
        ("REDIS://main", driver_named("no-such-scheme")),
        ("mongodb://main", driver_named("mongodb")),
    ],
)
def test_a_url_has_the_driver_of_its_scheme(url, driver):
    assert driver_of(url) is driver


def test_what_kombu_hands_to_the_driver_as_it_is_has_no_host_that_we_know_of():
    redis = DRIVERS["redis"]
    assert (redis.host_of("redis://main/1"), redis.host_of("redis+socket:///tmp/x")) == ("main", None)
    assert redis.address_of("redis://localhost") == redis.address_of("redis://127.0.0.1:6379/0")
    assert redis.address_of("redis+socket:///tmp/x") == ("redis+socket:///tmp/x",)


def test_the_usual_transports_are_those_of_brokers_with_links_of_their_own():
    names = {each.driver_name for each in usual_transports()}
    assert {"py-amqp", "redis"} <= names
    assert names.isdisjoint({"memory", "filesystem", "sqlalchemy", "sqs"})


def test_one_more_broker_is_one_file_and_one_line(monkeypatch):
    monkeypatch.setitem(DRIVERS, "toy", Toy())

    namespace = KombuNamespace("primary", ["toy://box"], {}, send_timeout=1)
    assert isinstance(namespace.sender(), ToySender)
    assert namespace.kind_of(ToyError("denied", "wrong password")) is FailureKind.UNAUTHORIZED
    assert namespace.failure(ToyError("full", "no room")).whole_namespace
    assert not namespace.failure(ToyError("missing", "no such queue")).whole_namespace
    assert namespace.encoded_size(Message(b"x")) == Message(b"x").size
    assert DRIVERS["toy"].primary_name("toy://box:7777") == "box"
    assert new_connection("toy://box").transport.driver_name == "toy"


def test_a_driver_with_a_transport_of_its_own_is_for_a_scheme_that_kombu_need_not_know(monkeypatch):
    with pytest.raises(ConfigurationError, match="begins with a scheme that no broker has"):
        transport_class("primary", "toy://box")
    monkeypatch.setitem(DRIVERS, "toy", Toy())
    assert "toy" not in TRANSPORT_ALIASES
    assert transport_class("primary", "toy://box").driver_name == "toy"
    check_sides(["toy://box"], PairedNamespaceOptions(secondary="toy://other"))
