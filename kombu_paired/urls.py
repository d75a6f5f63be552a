"""A broker's URL, as a value: what is shown of it, where it leads, and what is named after it. Pure.

A password that nobody quoted may hold all that has a meaning in a URL. What is shown of one, and what becomes part of a
name, is read with this in mind. Where it leads is read as Kombu reads it, since Kombu goes there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from kombu.utils.url import parse_url

from kombu_paired.connection_strings import connection_string_in, parts_of

__all__ = ("MASK", "PREFIX", "BrokerUrl")

#: Of a paired URL.
PREFIX = "paired+"
#: Stands where a secret was; Kombu's own.
MASK = "**"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)?(.*)", re.DOTALL)
#: What parts a URL from the next one, where there are several.
_NEXT_URL = re.compile(r";(?=[A-Za-z][A-Za-z0-9+.\-]*://)")
#: Hosts with ports, up to the path. Anything else before the path may be the first half of a torn password.
_PLACE = r"(?:[\w.\-~]*|\[[\w:.%]+\])(?::\d*)?"
_PLACES = re.compile(rf"{_PLACE}(?:,{_PLACE})*(?:/|\Z)")
_ENDPOINT = re.compile(rf"(?:[A-Za-z]+://)?({_PLACE})/?")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


@dataclass(frozen=True, repr=False)
class BrokerUrl:
    """One URL, whatever is in it. Printed, it shows no secret.

    Attributes:
        text: as it was given, with its secrets.
    """

    text: str

    @classmethod
    def all_in(cls, text: str) -> list[BrokerUrl]:
        """The URLs in a text of several (``amqp://a//;amqp://b//``)."""
        return [cls(each) for each in _NEXT_URL.split(text)]

    def __str__(self) -> str:
        return self.shown()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown()!r})"

    # -- its parts ----------------------------------------------------------------------------------------------

    @property
    def scheme(self) -> str:
        return self.text.partition("://")[0]

    @property
    def rest(self) -> str:
        """What follows the scheme."""
        return self.text.partition("://")[2]

    @property
    def kind(self) -> str:
        """Of broker: ``redis`` of ``redis+socket://``."""
        return self.scheme.partition("+")[0]

    @property
    def is_compound(self) -> bool:
        """A scheme of two parts, like ``redis+socket``: Kombu hands the rest to the driver as it is."""
        return "+" in self.scheme

    @property
    def is_paired(self) -> bool:
        return self.kind.lower() == PREFIX.rstrip("+")

    @property
    def legal_scheme(self) -> str:
        """With its ``://``; empty if what stands there is none, and may be a piece of a password."""
        return _SCHEME.fullmatch(self.text)[1] or ""  # type: ignore[index]

    # -- what is shown of it ------------------------------------------------------------------------------------

    def shown(self, mask: str = MASK) -> str:
        """Without its password and its query. Never raises, whatever is in it."""
        connection_string = connection_string_in(self.text)
        if connection_string is not None:
            endpoint = _ENDPOINT.fullmatch(parts_of(connection_string).get("endpoint", ""))
            return f"{self.legal_scheme}{mask}{f'@{endpoint[1]}' if endpoint else ''}"
        scheme, rest = _SCHEME.fullmatch(self.text).groups("")  # type: ignore[union-attr]
        address, query = _at_its_query(rest)
        credentials, at, place = address.rpartition("@")
        if ";" in rest or "@" in query or (at and not scheme) or not (at or _PLACES.match(place)):
            return f"{scheme}{mask}"  # nobody can tell where a password begins and ends
        user, colon, _ = credentials.partition(":")
        return f"{scheme}{user}{':' + mask if colon else ''}{at}{place}"

    # -- where it leads, as Kombu reads it ------------------------------------------------------------------------

    @property
    def host(self) -> str | None:
        """The host to connect to, if there is one.

        Raises:
            ValueError: it cannot be read. The text may show a part of its password.
        """
        return parse_url(self.text)["hostname"] or None

    def address(self, usual_port: int | None) -> tuple[Any, ...]:
        """What two URLs of one namespace have in common: first two facts of the server, then the place on it.

        Without a usual port nobody knows what it says, and only the same text is the same namespace.

        Raises:
            ValueError: it cannot be read. The text may show a part of its password.
        """
        if usual_port is None or self.is_compound:
            return (self.text,)
        parts = parse_url(self.text)
        host = parts["hostname"] or "localhost"
        host = "127.0.0.1" if host == "localhost" else host
        place = str(parts["virtual_host"] or "").strip("/") or "0"
        return (host, parts["port"] or usual_port, place)

    # -- what is named after it ---------------------------------------------------------------------------------

    def name(self, usual_port: int | None) -> str:
        """A name for a primary there. Two applications that share a secondary must not share backlog queues, so the
        name says what the URL says of the place, and nothing of its credentials.

        It is the host, and what else tells a primary from others: the port where it is not the usual one or the host
        says nothing alone (``localhost``, an address), and the virtual host or database where it is not the first. A
        URL of which that cannot be told gets a checksum.
        """
        address, query = _at_its_query(self.rest)
        if "@" in query:  # of a password with a question mark in it, perhaps
            return _as_name(f"{self.scheme}-{sha256(self.text.encode(errors='replace')).hexdigest()[:8]}")
        host, port, place = _parts(f"{self.scheme}://{self._without_torn_password(address)}")
        usual_port = None if self.is_compound else usual_port
        port = port or usual_port
        says_nothing = host in ("", "localhost") or ":" in host or host.replace(".", "").isdigit()
        named = [host or self.scheme]
        if port and (says_nothing or port != usual_port):
            named.append(str(port))
        if place and place != "0":
            named.append(place)
        return _as_name("-".join(named))

    @property
    def label(self) -> str:
        """Another name for it, where hosts are names of accounts: the first host label (``contoso`` of
        ``contoso.servicebus.windows.net``), or host and port of a local server.
        """
        # A key may hold slashes: Kombu, too, splits it off at the last @.
        host, port, _ = _parts("//" + self.rest.rpartition("@")[2].rpartition("://")[2])
        return _as_name(f"{host}-{port}" if port else host.split(".", 1)[0])

    def _without_torn_password(self, address: str) -> str:
        """A password with a slash in it reaches into the path: nothing of it may become part of a name."""
        authority, _, path = address.partition("/")
        is_torn = ";" in self.rest or (":" in authority and "@" in path)
        return address.rpartition("@")[2] if is_torn else address


def _at_its_query(text: str) -> tuple[str, str]:
    """What is before the query or the fragment, and what comes with it."""
    address, *query = re.split("[?#]", text, maxsplit=1)
    return address, "".join(query)


def _parts(url: str) -> tuple[str, int | None, str]:
    """Host, port and place of a URL; what cannot be read is empty."""
    try:
        parts = urlsplit(url)
        host, place = parts.hostname or "", parts.path.strip("/")
    except ValueError:
        return "", None, ""
    try:
        return host, parts.port, place
    except ValueError:
        return host, None, place


def _as_name(text: str) -> str:
    return _NOT_IN_A_NAME.sub("-", text).strip("-.") or "primary"
