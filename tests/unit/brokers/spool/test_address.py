"""What a URL of a spool says."""

from __future__ import annotations

import pytest

from kombu_paired.brokers.checking import check_sides
from kombu_paired.brokers.drivers import DRIVERS
from kombu_paired.brokers.spool.address import SpoolAddress, shown_size
from kombu_paired.errors import ConfigurationError
from kombu_paired.options import PairedNamespaceOptions


@pytest.mark.parametrize(
    ("url", "folder", "max_size"),
    [
        ("spool:///var/lib/shop/spool", "/var/lib/shop/spool", None),
        ("spool:///var/lib/shop/spool/", "/var/lib/shop/spool", None),
        ("spool:///var//lib/./shop", "/var/lib/shop", None),
        ("spool:///var/a%20b%23c%3Fd", "/var/a b#c?d", None),
        ("spool:///var/x?max_size=2GB", "/var/x", 2_000_000_000),
        ("spool:///var/x?max_size=1.5gb", "/var/x", 1_500_000_000),
        ("spool:///var/x?max_size=2GiB", "/var/x", 2 * 1024**3),
        ("spool:///var/x?max_size=512M", "/var/x", 512_000_000),
        ("spool:///var/x?max_size=1000000", "/var/x", 1_000_000),
        ("spool:///var/x?max_size=3%20TB", "/var/x", 3_000_000_000_000),
    ],
)
def test_what_makes_sense(url, folder, max_size):
    assert SpoolAddress.of(url) == SpoolAddress(folder, max_size)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("spool://var/lib/x", "three slashes"),
        ("spool://", "three slashes"),
        ("spool:///", "a folder of its own"),
        ("spool:///var/..", "a folder of its own"),
        ("spool:///var/x#y", "%23"),
        ("spool:///var/x%00", "NUL"),
        ("spool:///var/x?maxsize=2GB", "did you mean 'max_size'"),
        ("spool:///var/x?sync=no", "'sync'"),
        ("spool:///var/x?max_size=", "''"),
        ("spool:///var/x?max_size=much", "'much'"),
        ("spool:///var/x?max_size=-2GB", "'-2GB'"),
        ("spool:///var/x?max_size=10KB", "at least 1 MB"),
    ],
)
def test_what_makes_none_says_so_when_a_connection_is_made(url, says):
    with pytest.raises(ConfigurationError, match="(?s)" + says.replace("(", "\\(")):
        check_sides(["amqp://main//"], PairedNamespaceOptions(secondary=url))


def test_it_has_no_options_but_those():
    options = PairedNamespaceOptions(secondary="spool:///var/x", secondary_options={"visibility_timeout": 3})
    with pytest.raises(ConfigurationError, match="visibility_timeout"):
        check_sides(["amqp://main//"], options)


def test_it_is_refused_as_a_primary():
    with pytest.raises(ConfigurationError, match=r"the primary spool:///var/x .*nobody can consume"):
        check_sides(["spool:///var/x"], PairedNamespaceOptions(secondary="amqp://spare//"))


def test_workers_cannot_stand_in_there():
    with pytest.raises(ConfigurationError, match="workers cannot stand in at the secondary spool:///var/x"):
        check_sides(["amqp://main//"], PairedNamespaceOptions(secondary="spool:///var/x", stand_in_after=30))


def test_it_is_shown_with_its_machine():
    assert DRIVERS["spool"].shown("spool:///var/x?max_size=2GB").startswith("spool:///var/x on ")


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 bytes"), (1_500, "1.5 KB"), (2_000_000_000, "2 GB"), (3.2e12, "3.2 TB")]
)
def test_sizes_are_for_people(size, shown):
    assert shown_size(size) == shown
