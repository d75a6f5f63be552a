"""The entities of a namespace by name: queues, topics, subscriptions, and what may be done with each. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from kombu_paired.emulator.broker.entities import DEAD_LETTER_SUFFIX, SubscriptionOptions, TopicOptions
from kombu_paired.emulator.broker.errors import Condition, Refusal, missing
from kombu_paired.emulator.broker.messages import Message
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.broker.rules import ALL, Rule

__all__ = ("SUBSCRIPTIONS", "Directory", "Subscription", "Topic", "with_dead_letters")

#: Between the name of a topic and that of its subscription, in lower case.
SUBSCRIPTIONS = "/subscriptions/"


class Subscription:
    """A queue under a topic, with rules that say which messages it gets: those that one of them lets through."""

    def __init__(self, name: str, options: SubscriptionOptions, queue: Queue) -> None:
        self.name = name
        self.options = options
        self.queue = queue
        self.rules: dict[str, Rule] = {"$Default": ALL}

    def wants(self, message: Message) -> bool:
        """Whether it gets a message."""
        if self.options.status in ("Disabled", "SendDisabled"):
            return False
        return any(rule.lets_through(message.envelope) for rule in self.rules.values())


class Topic:
    """Copies each message into its subscriptions. Scheduled ones wait in ``inbox``."""

    def __init__(self, name: str, options: TopicOptions, inbox: Queue) -> None:
        self.name = name
        self.options = options
        self.inbox = inbox
        self.inbox.outlet = self._distribute
        self.subscriptions: dict[str, Subscription] = {}

    def _distribute(self, message: Message) -> bool:
        for subscription in self.subscriptions.values():
            if subscription.wants(message):
                subscription.queue.put(message.copy())
        return True


class Directory:
    """All entities, by name; names are not case sensitive."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.topics: dict[str, Topic] = {}

    def find(self, path: str) -> Queue | Topic:
        """The queue, topic, subscription or dead-letter queue of this path."""
        base, dead = path, False
        if path.lower().endswith(DEAD_LETTER_SUFFIX.lower()):
            base, dead = path[: -len(DEAD_LETTER_SUFFIX)], True
        found = self.entity(base)
        if found is None or (dead and isinstance(found, Topic)):
            raise missing(path)
        if dead and isinstance(found, Queue) and found.dead_letter is not None:
            return found.dead_letter
        return found

    def has(self, path: str) -> bool:
        """Whether there is something at a path: an entity, its ``$management``, or the namespace itself."""
        base = path.lower().strip("/").removesuffix("$management").strip("/")
        return not base or self.entity(base.removesuffix(DEAD_LETTER_SUFFIX.lower())) is not None

    def receivable(self, path: str) -> Queue:
        """What can be received from, of this path."""
        found = self.find(path)
        if isinstance(found, Topic):
            raise Refusal(Condition.NOT_ALLOWED, f"{path} is a topic: receive from one of its subscriptions")
        if found.options.status in ("Disabled", "ReceiveDisabled"):
            raise Refusal(Condition.ENTITY_DISABLED, f"The messaging entity {path!r} is disabled.")
        if found.options.forward_to is not None:
            raise Refusal(Condition.NOT_ALLOWED, f"{path} forwards its messages: nothing can be received from it")
        return found

    def sendable(self, path: str) -> Queue:
        """The queue that takes messages sent to this path; a topic's is its inbox."""
        found = self.find(path)
        if SUBSCRIPTIONS in path.lower() or path.lower().endswith(DEAD_LETTER_SUFFIX.lower()):
            raise Refusal(Condition.NOT_ALLOWED, f"{path} takes no messages from outside")
        if found.options.status in ("Disabled", "SendDisabled"):
            raise Refusal(Condition.ENTITY_DISABLED, f"The messaging entity {path!r} is disabled.")
        return found.inbox if isinstance(found, Topic) else found

    def entity(self, path: str) -> Queue | Topic | None:
        """The queue, topic or the queue of a subscription of this path, if it is there."""
        key = path.lower().strip("/")
        if SUBSCRIPTIONS in key:
            topic, _, name = key.partition(SUBSCRIPTIONS)
            subscription = self.topics[topic].subscriptions.get(name) if topic in self.topics else None
            return None if subscription is None else subscription.queue
        return self.queues.get(key) or self.topics.get(key)

    def queue(self, name: str) -> Queue:
        """A queue by its name."""
        return _found(self.queues.get(name.lower()), f"The queue {name!r}")

    def topic(self, name: str) -> Topic:
        """A topic by its name."""
        return _found(self.topics.get(name.lower()), f"The topic {name!r}")

    def subscription(self, topic_name: str, name: str) -> Subscription:
        """A subscription by its names."""
        return _found(
            self.topic(topic_name).subscriptions.get(name.lower()), f"The subscription {name!r} of {topic_name!r}"
        )

    def subscription_at(self, path: str) -> Subscription:
        """A subscription by its path."""
        topic, _, name = path.strip("/").lower().partition(SUBSCRIPTIONS)
        found = self.topics[topic].subscriptions.get(name) if topic in self.topics else None
        if found is None:
            raise missing(path)
        return found

    def all_queues(self) -> Iterator[Queue]:
        """Every queue there is: inboxes, subscriptions and dead-letter queues too."""
        for queue in self.queues.values():
            yield from with_dead_letters(queue)
        for topic in self.topics.values():
            yield topic.inbox
            for subscription in topic.subscriptions.values():
                yield from with_dead_letters(subscription.queue)


def with_dead_letters(queue: Queue) -> Iterator[Queue]:
    """A queue, and its dead-letter queue where it has one."""
    yield queue
    if queue.dead_letter is not None:
        yield queue.dead_letter


_Found = TypeVar("_Found")


def _found(entity: _Found | None, what: str) -> _Found:
    if entity is None:
        raise Refusal(Condition.NOT_FOUND, f"{what} does not exist.")
    return entity
