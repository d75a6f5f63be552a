"""Drivers of transports that have no links of their own: what can be promised of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kombu_paired.brokers.driver import Driver
from kombu_paired.brokers.links import KombuSender, Link
from kombu_paired.brokers.receiving import KombuReceiver
from kombu_paired.brokers.roles import Receiver, Sender
from kombu_paired.failures import FailureKind
from kombu_paired.urls import BrokerUrl

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("SQS", "AzureStorageQueues", "Database", "Files", "Generic", "Memory", "Unknown")

#: Error codes of AWS (``ClientError.response["Error"]["Code"]``), from the reference of the SQS API.
_AWS_CODES = {
    "AccessDenied": FailureKind.UNAUTHORIZED,
    "AccessDeniedException": FailureKind.UNAUTHORIZED,
    "ExpiredToken": FailureKind.UNAUTHORIZED,
    "InvalidClientTokenId": FailureKind.UNAUTHORIZED,
    "SignatureDoesNotMatch": FailureKind.UNAUTHORIZED,
    "UnrecognizedClientException": FailureKind.UNAUTHORIZED,
    "AWS.SimpleQueueService.NonExistentQueue": FailureKind.MISSING,
    "QueueDoesNotExist": FailureKind.MISSING,
    "RequestThrottled": FailureKind.THROTTLED,
    "Throttling": FailureKind.THROTTLED,
    "ThrottlingException": FailureKind.THROTTLED,
    "InvalidParameterValue": FailureKind.REJECTED,
    "InvalidMessageContents": FailureKind.REJECTED,
}


class Generic(Driver):
    """The driver of a transport that has no links of its own."""

    def link(self, namespace: KombuNamespace) -> Link:
        return Link(namespace)

    def sender(self, namespace: KombuNamespace) -> Sender:
        return KombuSender(namespace)

    def receiver(self, namespace: KombuNamespace, queues: Sequence[str], prefetch: int, timeout: float) -> Receiver:
        return KombuReceiver(namespace, queues, timeout)

    def kind_of(self, exc: BaseException) -> FailureKind | None:
        """By the code that AWS gives, else by names of classes: the packages need not be there."""
        response = getattr(exc, "response", None)
        if isinstance(response, dict):
            code = response.get("Error", {}).get("Code", "")
            return _AWS_CODES.get(code, FailureKind.FAULT)
        names = {each.__name__ for each in type(exc).__mro__}
        if "ReadTimeoutError" in names:
            return FailureKind.TIMEOUT
        if names & {"HTTPClientError", "ConnectionError", "InterfaceError"}:
            return FailureKind.UNREACHABLE
        if "NoCredentialsError" in names:
            return FailureKind.UNAUTHORIZED
        return None

    def limit_answers(self, connection: Any, seconds: float) -> None:
        """Nobody knows how: the sockets are the driver's own."""


class SQS(Generic):
    """Amazon SQS."""

    keeps_unsettled = True
    max_message_size = 262_144
    package, extra = "boto3", "kombu[sqs]"


class Files(Generic):
    """Kombu's ``filesystem``: a file for each message."""

    names_with_slashes = False
    tested = True


class Database(Generic):
    """Kombu's ``sqlalchemy``: a table."""

    tested = True
    package, extra = "sqlalchemy", "kombu[sqlalchemy]"


class Memory(Generic):
    """Kombu's ``memory``: a queue of one process."""

    outlives_restart = False
    tested = True


class Unknown(Generic):
    """A transport of which nothing is promised.

    Arguments:
        package, extra: what it needs, if that is known.
    """

    confirmed = False
    outlives_restart = False

    def __init__(self, package: str = "", extra: str = "") -> None:
        self.package, self.extra = package, extra


class AzureStorageQueues(Unknown):
    """Azure's other queues. Their URLs hold a key, as those of Service Bus do."""

    def __init__(self) -> None:
        super().__init__("azure.storage.queue", "kombu[azurestoragequeues]")

    def primary_name(self, url: str) -> str:
        return BrokerUrl(url).label
