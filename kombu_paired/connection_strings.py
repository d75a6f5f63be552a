"""Connection strings of Azure Service Bus, and the URLs that hold one. Pure.

The portal gives ``Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=POLICY;SharedAccessKey=KEY``. Kombu
takes every ``;`` for the end of a URL, so in a URL it stands percent-encoded: ``azureservicebus://Endpoint%3Dsb%3A…``.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

__all__ = ("as_url", "connection_string_in", "is_connection_string", "parts_of")

SCHEME = "azureservicebus://"

_BEGINNING = re.compile(
    r"\s*(?:Endpoint|SharedAccess(?:KeyName|Key|Signature)|EntityPath|UseDevelopmentEmulator)\s*=", re.IGNORECASE
)


def is_connection_string(text: str) -> bool:
    """Whether a text is one, or a piece of one that Kombu split at a ``;``."""
    return _BEGINNING.match(text) is not None


def as_url(text: str) -> str:
    """A connection string, alone or after the scheme, as the URL that holds it; any other text as it is."""
    found = text[len(SCHEME) :] if text.lower().startswith(SCHEME) else text
    return SCHEME + quote(found.strip(), safe="") if _is_plain(found) else text


def connection_string_in(url: str) -> str | None:
    """The one that a URL holds, percent-encoded or as it is, or that a text is; None if there is none."""
    found = url.partition("://")[2] if not is_connection_string(url) else url
    if _is_plain(found):
        return found.strip()
    plain = unquote(found)
    return plain.strip() if is_connection_string(plain) else None


def parts_of(connection_string: str) -> dict[str, str]:
    """Its parts by their names in lower case; a text without a ``=`` is a part without a value."""
    parts = (each.partition("=") for each in connection_string.split(";") if each.strip())
    return {name.strip().lower(): value.strip() for name, _, value in parts}


def _is_plain(text: str) -> bool:
    """Whether it is not percent-encoded: then a ``%`` of a key or a signature is its own."""
    return is_connection_string(text) and (";" in text or "%3b" not in text.lower())
