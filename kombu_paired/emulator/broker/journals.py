"""Where the broker writes down what must survive. Pure: :mod:`kombu_paired.emulator.broker.store` is one on disk."""

from __future__ import annotations

from typing import Protocol

from kombu_paired.emulator.broker.entities import QueueOptions, SubscriptionOptions, TopicOptions
from kombu_paired.emulator.broker.messages import Message
from kombu_paired.emulator.broker.rules import Rule

__all__ = ("Journal", "NamespaceJournal", "NoJournal", "NoNamespaceJournal")


class Journal(Protocol):
    """Where a queue writes down what must survive."""

    def message_saved(self, path: str, message: Message) -> None: ...
    def message_removed(self, path: str, sequence: int) -> None: ...
    def session_saved(self, path: str, session: str, state: bytes | None) -> None: ...
    def duplicate_saved(self, path: str, message_id: str, until: float) -> None: ...
    def sequence_reserved(self, path: str, sequence: int) -> None: ...


class NoJournal:
    """Nothing survives."""

    def message_saved(self, path: str, message: Message) -> None:
        """Nothing to do."""

    def message_removed(self, path: str, sequence: int) -> None:
        """Nothing to do."""

    def session_saved(self, path: str, session: str, state: bytes | None) -> None:
        """Nothing to do."""

    def duplicate_saved(self, path: str, message_id: str, until: float) -> None:
        """Nothing to do."""

    def sequence_reserved(self, path: str, sequence: int) -> None:
        """Nothing to do."""


class NamespaceJournal(Journal, Protocol):
    """Where a namespace writes down what must survive, beside the messages."""

    def entity_saved(self, path: str, options: QueueOptions | TopicOptions | SubscriptionOptions) -> None: ...
    def entity_removed(self, path: str) -> None: ...
    def rules_saved(self, path: str, rules: dict[str, Rule]) -> None: ...


class NoNamespaceJournal(NoJournal):
    """Nothing survives."""

    def entity_saved(self, path: str, options: QueueOptions | TopicOptions | SubscriptionOptions) -> None:
        """Nothing to do."""

    def entity_removed(self, path: str) -> None:
        """Nothing to do."""

    def rules_saved(self, path: str, rules: dict[str, Rule]) -> None:
        """Nothing to do."""
