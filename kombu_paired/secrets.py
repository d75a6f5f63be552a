"""What must not be shown, and how everything else is shown without it. Pure.

A secret is known in two ways: by its place in a URL, which is enough for an address that is shown
(:func:`without_secrets`), and by itself, which takes it out of a text that somebody else wrote (:class:`Secrets`): a
driver may put the whole URL, or a piece of a password that it took for a port, into its error.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, unquote_plus

from kombu_paired.connection_strings import connection_string_in, parts_of
from kombu_paired.urls import MASK, BrokerUrl

__all__ = (
    "NO_SECRETS",
    "Secrets",
    "shown_options",
    "shown_url",
    "without_secrets",
    "without_secrets_in_urls",
)

#: A shorter one would be found in half of all words.
SHORTEST = 4

_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://\S+")
_END_OF_SENTENCE = re.compile(r"[)\]}>'\",.:;]*$")
#: Where passwords may break when somebody takes one for a part of a URL.
_BREAKS = re.compile(r"[/?#:;@\[\]&=\s]+")
#: Names of settings that hold secrets; a prefix of keys and the file of a key are none.
_SECRET_NAME = re.compile(
    r"(?!.*(?:prefix|file|path)$).*(?:TOKEN|KEY|SECRET|PASS|PWD|SIGNATURE|\bSIG\b|SAS|CREDENTIAL|CONNECTION_STRING)",
    re.IGNORECASE | re.DOTALL,
)
#: How a connection string and a signed URL carry theirs.
_ASSIGNED = re.compile(
    r"\b((?:SharedAccess|Account)Key|SharedAccessSignature|sig|pass(?:word|wd)?|pwd)=[^;&\s'\"]+", re.IGNORECASE
)


def without_secrets(url: str, mask: str = MASK) -> str:
    """A broker URL, or several, as may be shown: without passwords and queries. Never raises, whatever is in it."""
    return ";".join(each.shown(mask) for each in BrokerUrl.all_in(url))


def shown_url(url: str, alternates: Iterable[object] | None, mask: str = MASK) -> str:
    """One of the URLs that Kombu made of a text at every ``;``: if one of those was a password's, little is shown."""
    if any("://" not in str(each) for each in alternates or ()):
        return f"{BrokerUrl(url).legal_scheme}{mask}"
    return without_secrets(url, mask)


def without_secrets_in_urls(text: str) -> str:
    """A text in which every URL is shown without its secrets."""
    if "://" not in text:
        return text

    def shown(found: re.Match[str]) -> str:
        url = found[0]
        end = _END_OF_SENTENCE.search(url).start()  # type: ignore[union-attr]
        return without_secrets(url[:end]) + url[end:]

    return _ASSIGNED.sub(rf"\1={MASK}", _URL_IN_TEXT.sub(shown, text))


def shown_options(options: Mapping[str, Any], mask: str = MASK) -> dict[str, Any]:
    """Transport options of a pairing as may be shown.

    Those of the two sides belong to drivers, so nobody knows which of their texts are secrets: of them names, numbers
    and flags are shown.
    """
    sides = {"primary_options", "secondary_options"}
    return {
        key: _shown_of_driver(key, value, mask) if key in sides else _shown(key, value, mask)
        for key, value in options.items()
    }


def _shown(key: object, value: Any, mask: str) -> Any:
    if isinstance(key, str) and _SECRET_NAME.match(key):
        return mask
    if isinstance(value, Mapping):
        return {each: _shown(each, inner, mask) for each, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(None, each, mask) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return without_secrets(value, mask) if isinstance(value, str) and "://" in value else value


def _shown_of_driver(key: object, value: Any, mask: str) -> Any:
    if isinstance(key, str) and _SECRET_NAME.match(key):
        return mask
    if isinstance(value, Mapping):
        return {each: _shown_of_driver(each, inner, mask) for each, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown_of_driver(None, each, mask) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else mask


class Secrets:
    """The passwords and keys of a namespace, to be taken out of every text that leaves it."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        spellings = {spelling for value in values for spelling in _spellings(value) if len(spelling) >= SHORTEST}
        self._longest_first = sorted(spellings, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({MASK})"

    @classmethod
    def of(cls, urls: Iterable[str], *options: Mapping[str, Any]) -> Secrets:
        """Those in URLs, and those in options whose names say so."""
        found = [secret for url in urls for secret in _in_url(url)]
        for each in options:
            found.extend(_in_options(None, each))
        return cls(found)

    def hide(self, text: str) -> str:
        """The text without the secrets, however they are spelled, and without those in URLs that it quotes."""
        for spelling in self._longest_first:
            text = text.replace(spelling, MASK)
        return _ASSIGNED.sub(rf"\1={MASK}", without_secrets_in_urls(text))

    def scrub(self, exc: BaseException) -> None:
        """Take the secrets out of a driver's exception, and of those it came from: their tracebacks are printed."""
        seen: set[int] = set()
        waiting: list[BaseException | None] = [exc]
        while waiting:
            each = waiting.pop()
            if each is None or id(each) in seen:
                continue
            seen.add(id(each))
            waiting += [each.__cause__, each.__context__]
            if self.hide(f"{each}{each!r}") != f"{each}{each!r}":
                self._scrub_one(each)

    def _scrub_one(self, exc: BaseException) -> None:
        exc.args = tuple(self._hidden(each) for each in exc.args)
        for name, value in list(vars(exc).items()):
            if isinstance(value, str | bytes):
                setattr(exc, name, self._hidden(value))
        if isinstance(exc, UnicodeError) and hasattr(exc, "object"):
            exc.object = self._hidden(exc.object)
        if isinstance(exc, OSError) and isinstance(exc.strerror, str):
            exc.strerror = self._hidden(exc.strerror)

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, bytes):
            return self.hide(value.decode(errors="backslashreplace")).encode()
        if isinstance(value, BaseException):
            self.scrub(value)
            return value
        text = repr(value)
        hidden = self.hide(text)
        return value if hidden == text else hidden


#: Of a namespace without any.
NO_SECRETS = Secrets()


def _in_url(url: str) -> Iterator[str]:
    """What may be a secret in a URL, whoever reads it."""
    connection_string = connection_string_in(url)
    if connection_string is not None:
        yield from _in_parts(parts_of(connection_string))
        return
    for each in BrokerUrl.all_in(url):
        rest = each.rest or each.text
        credentials, at, _ = rest.rpartition("@")
        password = credentials.partition(":")[2]
        if at and password:
            yield password
            yield from _BREAKS.split(password)
            yield from _BREAKS.split(unquote(password))
        for name, value in parse_qsl(rest.rpartition("?")[2]):
            if _SECRET_NAME.match(name):
                yield value


def _in_parts(parts: Mapping[str, str]) -> Iterator[str]:
    """What is a secret in a connection string: all but who and where."""
    for name, value in parts.items():
        if name not in ("endpoint", "sharedaccesskeyname", "entitypath", "usedevelopmentemulator"):
            yield value
            yield from _signatures(value)


def _signatures(value: str) -> Iterator[str]:
    yield from (part[4:] for part in value.split("&") if part.startswith("sig="))


def _in_options(key: object, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            is_named = isinstance(name, str) and _SECRET_NAME.match(name)
            yield from _in_options(name if is_named else key, inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _in_options(key, inner)
    elif isinstance(value, bytes):
        yield from _in_options(key, value.decode(errors="replace"))
    elif isinstance(value, str):
        if key is not None:
            yield value
            yield from _signatures(value)
        elif "://" in value:
            yield from _in_url(value)


def _spellings(secret: str) -> Iterator[str]:
    """A secret as it is, quoted or not, and as ``repr`` and JSON print it."""
    for plain in {secret, unquote(secret), unquote_plus(secret)}:
        yield from (plain, quote(plain), quote(plain, safe=""), quote_plus(plain))
        yield from (repr(plain)[1:-1], json.dumps(plain)[1:-1], ascii(plain)[1:-1])
