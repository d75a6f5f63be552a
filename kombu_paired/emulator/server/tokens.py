"""Shared access signatures: who may do what, and where. Pure; the clock is injected."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

from kombu_paired.emulator.broker.errors import TRACKING, Condition, Refusal

__all__ = ("ALL_RIGHTS", "Claims", "Grant", "Policies", "Policy", "path_of")

ALL_RIGHTS = frozenset({"Manage", "Send", "Listen"})


@dataclass(frozen=True)
class Policy:
    """A named key. Manage includes the other rights, as in the service.

    Attributes:
        entity: the one queue or topic that it is good for; empty: all of the namespace.
    """

    name: str
    key: str
    rights: frozenset[str] = ALL_RIGHTS
    entity: str = ""

    @classmethod
    def parse(cls, text: str) -> Policy:
        """``NAME:KEY``, ``NAME:KEY:Send,Listen`` or ``NAME:KEY:Send:ENTITY``; a key may hold ``/ + =`` but no colon."""
        name, _, rest = text.partition(":")
        key, _, rest = rest.partition(":")
        rights, _, entity = rest.partition(":")
        if not name or not key:
            raise ValueError(f"{text!r} is not NAME:KEY, NAME:KEY:RIGHTS or NAME:KEY:RIGHTS:ENTITY")
        wanted = frozenset(right.strip().capitalize() for right in rights.split(",") if right.strip()) or ALL_RIGHTS
        if not wanted <= ALL_RIGHTS:
            raise ValueError(f"rights are Manage, Send and Listen, not {rights}")
        return cls(name, key, ALL_RIGHTS if "Manage" in wanted else wanted, entity.strip("/"))

    def __str__(self) -> str:
        return f"{self.name}:{self.key}:{','.join(sorted(self.rights))}" + (f":{self.entity}" if self.entity else "")

    def sign(self, audience: str, expiry: int) -> str:
        """The signature of a token."""
        digest = hmac.new(self.key.encode(), f"{audience}\n{expiry}".encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()


class Grant(NamedTuple):
    """What a token allows, and until when, seconds since 1970."""

    rights: frozenset[str]
    until: float


class Claims:
    """What the tokens of a connection allow: each is for a path, and for what is below it.

    Arguments:
        now: the clock, seconds since 1970.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._grants: dict[str, Grant] = {}

    def add(self, path: str, grant: Grant) -> None:
        """A token was shown for a path; it takes the place of the one before."""
        self._grants[path.lower()] = grant

    def at(self, path: str) -> frozenset[str]:
        """What may be done at a path."""
        now = self._now()
        return frozenset().union(*(grant.rights for grant in self._over(path) if grant.until > now))

    def have_expired(self, path: str) -> bool:
        """Whether there was a token for a path, and was not renewed."""
        grants, now = self._over(path), self._now()
        return bool(grants) and all(grant.until <= now for grant in grants)

    def _over(self, path: str) -> list[Grant]:
        return [grant for mine, grant in self._grants.items() if _covers(mine, path)]


class Policies:
    """The keys of a namespace. Without any, every token is good, and none is needed.

    Arguments:
        clock: seconds since 1970.
        token_life: seconds that a token is good for after it was shown, at most; 0: as long as it says.
    """

    def __init__(self, policies: Iterable[Policy], clock: Callable[[], float], token_life: float = 0.0) -> None:
        self._policies = tuple(policies)
        self._clock = clock
        self._token_life = token_life or math.inf

    @property
    def open_to_all(self) -> bool:
        return not self._policies

    def grant(self, token: str, path: str) -> Grant:
        """What the owner of a token may do at a path; a :class:`Refusal` when it is no good there."""
        limit = self._clock() + self._token_life
        if self.open_to_all:
            return Grant(ALL_RIGHTS, limit)
        scheme, _, fields = token.partition(" ")
        if scheme != "SharedAccessSignature":
            raise _refusal("the token is no shared access signature, and this emulator checks no others")
        parts = dict(part.partition("=")[::2] for part in fields.split("&"))
        signed = path_of(unquote_plus(unquote(parts.get("sr", ""))))
        if not _covers(signed, path):
            raise _refusal("InvalidAudience: The authorization header contains a token with a wrong audience.")
        policy = self._policy(unquote_plus(unquote(parts.get("skn", ""))), signed)  # the SDK quotes it twice
        return Grant(policy.rights, min(self._check(policy, parts), limit))

    def _policy(self, name: str, path: str) -> Policy:
        """The policy of this name that is nearest to a path."""
        known = [each for each in self._policies if each.name == name and _covers(each.entity, path)]
        if not known:
            raise _refusal("InvalidSignature: The token has an invalid signature.")
        return max(known, key=lambda each: len(each.entity))

    def require(self, claims: Claims, right: str, path: str) -> None:
        """Raise a :class:`Refusal` unless these claims include a right at a path."""
        if not self.open_to_all and right not in claims.at(path):
            raise Refusal(
                Condition.UNAUTHORIZED_ACCESS,
                f"Unauthorized access. '{right}' claim(s) are required to perform this operation. "
                f"Resource: 'sb://emulator/{path}'. {TRACKING}",
            )

    def _check(self, policy: Policy, parts: dict[str, str]) -> int:
        """Until when it is good."""
        expiry = parts.get("se", "")
        if not expiry.isdigit():
            raise _refusal("MalformedToken: The token has no expiry.")
        # What is signed is the audience as it stands in the token, quoted.
        good = policy.sign(parts.get("sr", ""), int(expiry))
        if not hmac.compare_digest(good, unquote(parts.get("sig", ""))):
            raise _refusal("InvalidSignature: The token has an invalid signature.")
        if int(expiry) <= self._clock():
            raise _refusal("ExpiredToken: The token is expired.")
        return int(expiry)


def path_of(address: str) -> str:
    """The entity of an address: ``amqps://host:port/entity/path`` or just ``entity/path``."""
    if "://" in address:
        address = address.split("://", 1)[1].partition("/")[2]
    return address.strip("/")


def _covers(mine: str, path: str) -> bool:
    """Whether what is good for one path is good for another."""
    mine, path = mine.lower(), path.lower()
    return not mine or path == mine or path.startswith(f"{mine}/")


def _refusal(description: str) -> Refusal:
    return Refusal(Condition.AUTH_FAILED, f"{description} {TRACKING}")
