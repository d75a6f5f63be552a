"""Names for primaries, made from their URLs. Pure.

Two applications that share a secondary must not share backlog queues, so the name says what the URL says of the place,
and nothing of its credentials.
"""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import urlsplit

from kombu_paired.secrets import split_urls

__all__ = ("named_by_label", "named_by_server")

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


def named_by_label(url: str) -> str:
    """The first host label (``contoso`` of ``contoso.servicebus.windows.net``), or host and port of a local server."""
    # A key may hold slashes: Kombu, too, splits it off at the last @.
    host, port, _ = _parts("//" + url.partition("://")[2].rpartition("@")[2].rpartition("://")[2])
    return _as_name(f"{host}-{port}" if port else host.split(".", 1)[0])


def named_by_server(url: str, usual_port: int | None) -> str:
    """The host, and what else tells a primary from others.

    That is the port where it is not the usual one or the host says nothing alone (``localhost``, an address), and the
    virtual host or database where it is not the first. A URL of which that cannot be told gets a checksum.
    """
    scheme = url.partition("://")[0]
    first = split_urls(url)[0]
    if _has_query_with_at(first):
        return _as_name(f"{scheme}-{sha256(first.encode(errors='replace')).hexdigest()[:8]}")
    host, port, place = _parts(_without_torn_password(first))
    port = port or usual_port
    says_nothing = host in ("", "localhost") or ":" in host or host.replace(".", "").isdigit()
    named = [host or scheme]
    if port and (says_nothing or port != usual_port):
        named.append(str(port))
    if place and place != "0":
        named.append(place)
    return _as_name("-".join(named))


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


def _without_torn_password(url: str) -> str:
    """A password with a slash in it reaches into the path: nothing of it may become part of a name."""
    scheme, slashes, rest = url.partition("://")
    address = re.split("[?#]", rest, maxsplit=1)[0]
    authority, _, path = address.partition("/")
    if "@" in address and (";" in rest or (":" in authority and "@" in path)):
        rest = address.rpartition("@")[2]
    return f"{scheme}{slashes}{rest}"


def _has_query_with_at(url: str) -> bool:
    """Nobody can tell then where a password begins and ends: it may hold a question mark."""
    return "@" in "".join(re.split("[?#]", url, maxsplit=1)[1:])


def _as_name(text: str) -> str:
    return _NOT_IN_A_NAME.sub("-", text).strip("-.") or "primary"
