"""Shared access signatures: who may do what. Pure; the clock is injected."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import unquote, unquote_plus

from kombu_paired.emulator.broker.errors import Condition, Refusal

__all__ = ("ALL_RIGHTS", "Policies", "Policy")

ALL_RIGHTS = frozenset({"Manage", "Send", "Listen"})


@dataclass(frozen=True)
class Policy:
    """A named key. Manage includes the other rights, as in the service."""

    name: str
    key: str
    rights: frozenset[str] = ALL_RIGHTS

    @classmethod
    def parse(cls, text: str) -> Policy:
        """``NAME:KEY`` or ``NAME:KEY:Send,Listen``; a key may hold ``/ + =`` but no colon."""
        name, _, rest = text.partition(":")
        key, _, rights = rest.partition(":")
        if not name or not key:
            raise ValueError(f"{text!r} is not NAME:KEY or NAME:KEY:RIGHTS")
        wanted = frozenset(right.strip().capitalize() for right in rights.split(",") if right.strip()) or ALL_RIGHTS
        if not wanted <= ALL_RIGHTS:
            raise ValueError(f"rights are Manage, Send and Listen, not {rights}")
        return cls(name, key, ALL_RIGHTS if "Manage" in wanted else wanted)

    def sign(self, audience: str, expiry: int) -> str:
        """The signature of a token."""
        digest = hmac.new(self.key.encode(), f"{audience}\n{expiry}".encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()


class Policies:
    """The keys of a namespace. Without any, every token is good, and none is needed."""

    def __init__(self, policies: Iterable[Policy], clock: Callable[[], float]) -> None:
        self._policies = {policy.name: policy for policy in policies}
        self._clock = clock

    @property
    def open_to_all(self) -> bool:
        return not self._policies

    def rights(self, token: str) -> frozenset[str]:
        """What the owner of a token may do; a :class:`Refusal` when it is no good."""
        if self.open_to_all:
            return ALL_RIGHTS
        scheme, _, fields = token.partition(" ")
        if scheme != "SharedAccessSignature":
            raise _refusal("the token is no shared access signature, and this emulator checks no others")
        parts = dict(part.partition("=")[::2] for part in fields.split("&"))
        name = unquote_plus(unquote(parts.get("skn", "")))  # the SDK quotes it twice
        policy = self._policies.get(name)
        if policy is None:
            raise _refusal(f"there is no policy {name!r}")
        self._check(policy, parts)
        return policy.rights

    def require(self, rights: frozenset[str], right: str) -> None:
        """Raise a :class:`Refusal` unless a client with these rights has this one, too."""
        if not self.open_to_all and right not in rights:
            raise Refusal(Condition.UNAUTHORIZED_ACCESS, f"Unauthorized access. '{right}' claim(s) are required.")

    def _check(self, policy: Policy, parts: dict[str, str]) -> None:
        expiry = parts.get("se", "")
        if not expiry.isdigit():
            raise _refusal("the token has no expiry")
        # What is signed is the audience as it stands in the token, quoted.
        good = policy.sign(parts.get("sr", ""), int(expiry))
        if not hmac.compare_digest(good, unquote(parts.get("sig", ""))):
            raise _refusal("the signature of the token is wrong")
        if int(expiry) <= self._clock():
            raise _refusal("the token has expired")


def _refusal(description: str) -> Refusal:
    return Refusal(Condition.AUTH_FAILED, f"Unauthorized: {description}")
