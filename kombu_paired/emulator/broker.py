"""A namespace: queues, topics, subscriptions, how messages get from one to the other, and their administration. Pure.

The clock and the journal are injected. :mod:`kombu_paired.emulator.queues` has what happens inside a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from kombu_paired.emulator.codec import Symbol
from kombu_paired.emulator.entities import (
    DEAD_LETTER_SUFFIX,
    QueueOptions,
    SubscriptionOptions,
    TopicOptions,
    check_name,
    check_options,
)
from kombu_paired.emulator.envelope import Envelope
from kombu_paired.emulator.errors import Condition, Refusal
from kombu_paired.emulator.queues import Journal, Message, NoJournal, Queue

__all__ = ("Namespace", "NamespaceJournal", "NoNamespaceJournal", "Subscription", "Topic")

_SUBSCRIPTIONS = "/subscriptions/"
_SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
_HOPS = 4
_UNCOUNTED = 2**31 - 1


class NamespaceJournal(Journal, Protocol):
    """Where a namespace writes down what must survive, beside the messages."""

    def entity_saved(self, path: str, options: QueueOptions | TopicOptions | SubscriptionOptions) -> None: ...
    def entity_removed(self, path: str) -> None: ...
    def rules_saved(self, path: str, rules: dict[str, bool]) -> None: ...


class NoNamespaceJournal(NoJournal):
    """Nothing survives."""

    def entity_saved(self, path: str, options: QueueOptions | TopicOptions | SubscriptionOptions) -> None:
        """Nothing to do."""

    def entity_removed(self, path: str) -> None:
        """Nothing to do."""

    def rules_saved(self, path: str, rules: dict[str, bool]) -> None:
        """Nothing to do."""


class Subscription:
    """A queue under a topic, with rules that say which messages it gets.

    A rule is true or false here: the filters of the service that look into a message are not emulated.
    """

    def __init__(self, name: str, options: SubscriptionOptions, queue: Queue) -> None:
        self.name = name
        self.options = options
        self.queue = queue
        self.rules: dict[str, bool] = {"$Default": True}

    @property
    def wants_messages(self) -> bool:
        return any(self.rules.values())


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
            if subscription.wants_messages and subscription.options.status not in ("Disabled", "SendDisabled"):
                subscription.queue.put(message.copy())
        return True


class Namespace:
    """All entities, by name; names are not case sensitive.

    Arguments:
        clock: seconds since 1970.
        journal: told of every change that must survive.
        on_ready: called with a queue that has something to receive.
        on_gone: called with a path whose entity was deleted.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        journal: NamespaceJournal | None = None,
        on_ready: Callable[[Queue], None] | None = None,
        on_gone: Callable[[str], None] | None = None,
    ) -> None:
        self.clock = clock
        self.journal: NamespaceJournal = journal or NoNamespaceJournal()
        self.queues: dict[str, Queue] = {}
        self.topics: dict[str, Topic] = {}
        self._on_ready = on_ready
        self._on_gone = on_gone or (lambda path: None)

    # --------------------------------------------------------------------------------------------------- resolution

    def find(self, path: str) -> Queue | Topic:
        """The queue, topic, subscription or dead-letter queue of this path."""
        base, dead = path, False
        if path.lower().endswith(DEAD_LETTER_SUFFIX.lower()):
            base, dead = path[: -len(DEAD_LETTER_SUFFIX)], True
        found = self._entity(base)
        if found is None or (dead and isinstance(found, Topic)):
            raise Refusal(Condition.NOT_FOUND, f"The messaging entity {path!r} could not be found.")
        if dead and isinstance(found, Queue) and found.dead_letter is not None:
            return found.dead_letter
        return found

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
        if _SUBSCRIPTIONS in path.lower() or path.lower().endswith(DEAD_LETTER_SUFFIX.lower()):
            raise Refusal(Condition.NOT_ALLOWED, f"{path} takes no messages from outside")
        if found.options.status in ("Disabled", "SendDisabled"):
            raise Refusal(Condition.ENTITY_DISABLED, f"The messaging entity {path!r} is disabled.")
        return found.inbox if isinstance(found, Topic) else found

    def _entity(self, path: str) -> Queue | Topic | None:
        key = path.lower().strip("/")
        if _SUBSCRIPTIONS in key:
            topic, _, name = key.partition(_SUBSCRIPTIONS)
            subscription = self.topics[topic].subscriptions.get(name) if topic in self.topics else None
            return None if subscription is None else subscription.queue
        return self.queues.get(key) or self.topics.get(key)

    # ------------------------------------------------------------------------------------------------------ sending

    def send(self, path: str, payloads: list[bytes]) -> list[int]:
        """Store messages, all or none, and their sequence numbers."""
        queue = self.sendable(path)
        messages = [self._message(payload) for payload in payloads]
        for message in messages:
            queue.check(message.envelope, message.size)
        self._check_room(path, queue, sum(message.size for message in messages))
        return [queue.put(message) for message in messages]

    def _message(self, payload: bytes) -> Message:
        envelope = Envelope.read(payload)
        scheduled = envelope.annotations.get(_SCHEDULED)
        return Message(envelope, len(payload), scheduled=None if scheduled is None else scheduled / 1000)

    def _check_room(self, path: str, queue: Queue, size: int) -> None:
        topic = self.topics.get(path.lower().strip("/"))
        if topic is None:
            queue.check_room(size)
            return
        used = max((subscription.queue.size for subscription in topic.subscriptions.values()), default=0)
        queue.check_room(size + used)

    def _forward(self, source: Queue, message: Message) -> bool:
        """Move a message on. Where it cannot go on, it becomes a dead letter of the queue that it came from."""
        destination = _path_of(source.options.forward_to or "")
        try:
            if message.hops >= _HOPS:
                raise Refusal(Condition.NOT_ALLOWED, f"more than {_HOPS} hops")
            queue = self.sendable(destination)
            copy = message.copy()
            copy.hops = message.hops + 1
            queue.check(copy.envelope, copy.size)
            self._check_room(destination, queue, copy.size)
        except Refusal as refusal:
            source.put_dead_letter(message, "ForwardingFailed", f"not forwarded to {destination}: {refusal}")
            return True
        queue.put(copy)
        return True

    # ----------------------------------------------------------------------------------------------- administration

    def create_queue(self, name: str, options: QueueOptions) -> Queue:
        """A new queue."""
        check_name(name)
        check_options(options)
        self._check_new(name)
        self._check_targets(name, options)
        queue = self.queues[name.lower()] = self._new_queue(name, options)
        self.journal.entity_saved(name, options)
        return queue

    def create_topic(self, name: str, options: TopicOptions) -> Topic:
        """A new topic."""
        check_name(name)
        check_options(options)
        self._check_new(name)
        inbox = Queue(name, _inbox_options(options), self.clock, self.journal)
        topic = self.topics[name.lower()] = Topic(name, options, inbox)
        self.journal.entity_saved(name, options)
        return topic

    def create_subscription(self, topic_name: str, name: str, options: SubscriptionOptions) -> Subscription:
        """A new subscription of a topic that exists."""
        check_name(name, 50, "subscription")
        check_options(options)
        topic = self.topic(topic_name)
        if name.lower() in topic.subscriptions:
            raise Refusal(Condition.ENTITY_ALREADY_EXISTS, f"The subscription {name!r} already exists.")
        self._check_targets(topic_name, options)
        path = f"{topic.name}/Subscriptions/{name}"
        queue = self._new_queue(path, _subscription_queue_options(topic.options, options))
        subscription = topic.subscriptions[name.lower()] = Subscription(name, options, queue)
        self.journal.entity_saved(path, options)
        return subscription

    def update_queue(self, name: str, options: QueueOptions) -> Queue:
        """Other properties for a queue."""
        queue = self.queue(name)
        check_options(options, queue.options)
        self._check_targets(name, options)
        self._reconfigure(queue, options)
        self.journal.entity_saved(queue.path, options)
        return queue

    def update_topic(self, name: str, options: TopicOptions) -> Topic:
        """Other properties for a topic."""
        topic = self.topic(name)
        check_options(options, topic.options)
        topic.options = options
        topic.inbox.options, topic.inbox.updated = _inbox_options(options), self.clock()
        for subscription in topic.subscriptions.values():
            self._reconfigure(subscription.queue, _subscription_queue_options(options, subscription.options))
        self.journal.entity_saved(topic.name, options)
        return topic

    def update_subscription(self, topic_name: str, name: str, options: SubscriptionOptions) -> Subscription:
        """Other properties for a subscription."""
        topic, subscription = self.topic(topic_name), self.subscription(topic_name, name)
        check_options(options, subscription.options)
        self._check_targets(topic_name, options)
        subscription.options = options
        self._reconfigure(subscription.queue, _subscription_queue_options(topic.options, options))
        self.journal.entity_saved(subscription.queue.path, options)
        return subscription

    def delete(self, path: str) -> None:
        """Remove a queue, topic or subscription with all its messages."""
        found = self.find(path)
        key = path.lower().strip("/")
        if isinstance(found, Topic):
            for subscription in list(found.subscriptions.values()):
                self.delete(subscription.queue.path)
            found.inbox.purge()
            del self.topics[key]
        elif _SUBSCRIPTIONS in key:
            topic, _, name = key.partition(_SUBSCRIPTIONS)
            del self.topics[topic].subscriptions[name]
            self._purge(found)
        else:
            del self.queues[key]
            self._purge(found)
        self.journal.entity_removed(found.name if isinstance(found, Topic) else found.path)
        self._on_gone(path)

    def set_rules(self, topic_name: str, name: str, rules: dict[str, bool]) -> None:
        """Replace the rules of a subscription."""
        subscription = self.subscription(topic_name, name)
        subscription.rules = rules
        self.journal.rules_saved(subscription.queue.path, rules)

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

    def all_queues(self) -> Iterator[Queue]:
        """Every queue there is: inboxes, subscriptions and dead-letter queues too."""
        for queue in self.queues.values():
            yield from _with_dead_letters(queue)
        for topic in self.topics.values():
            yield topic.inbox
            for subscription in topic.subscriptions.values():
                yield from _with_dead_letters(subscription.queue)

    def tick(self) -> None:
        """Do what is due in every queue, and delete what has been idle for long enough."""
        now = self.clock()
        for queue in list(self.all_queues()):
            queue.tick()
            limit = queue.options.auto_delete_on_idle
            if limit is not None and queue.attached == 0 and max(queue.accessed, queue.updated) + limit <= now:
                self.delete(queue.path)

    def restore(
        self, path: str, options: QueueOptions | TopicOptions | SubscriptionOptions, rules: dict[str, bool] | None
    ) -> None:
        """Put an entity back that a store kept: nothing is checked, and nothing written down."""
        if isinstance(options, TopicOptions):
            inbox = Queue(path, _inbox_options(options), self.clock, self.journal)
            self.topics[path.lower()] = Topic(path, options, inbox)
        elif isinstance(options, QueueOptions):
            self.queues[path.lower()] = self._new_queue(path, options)
        else:
            topic = self.topics[path.lower().partition(_SUBSCRIPTIONS)[0]]
            name = path.rpartition("/")[2]
            queue = self._new_queue(path, _subscription_queue_options(topic.options, options))
            subscription = topic.subscriptions[name.lower()] = Subscription(name, options, queue)
            subscription.rules = rules if rules is not None else subscription.rules

    # ------------------------------------------------------------------------------------------------------ helpers

    def _new_queue(self, path: str, options: QueueOptions) -> Queue:
        dead_options = QueueOptions(
            lock_duration=options.lock_duration,
            max_size_in_megabytes=options.max_size_in_megabytes,
            max_delivery_count=_UNCOUNTED,
        )
        dead = Queue(path + DEAD_LETTER_SUFFIX, dead_options, self.clock, self.journal, on_ready=self._on_ready)
        queue = Queue(path, options, self.clock, self.journal, dead_letter=dead, on_ready=self._on_ready)
        self._reconfigure(queue, options)
        return queue

    def _reconfigure(self, queue: Queue, options: QueueOptions) -> None:
        queue.options, queue.updated = options, self.clock()
        queue.outlet = (lambda message: self._forward(queue, message)) if options.forward_to else None
        dead = queue.dead_letter
        if dead is not None:
            onward = options.forward_dead_lettered_messages_to
            dead.options = replace(dead.options, forward_to=onward, lock_duration=options.lock_duration)
            dead.outlet = (lambda message: self._forward_dead(dead, message)) if onward else None

    def _forward_dead(self, dead: Queue, message: Message) -> bool:
        destination = _path_of(dead.options.forward_to or "")
        try:
            queue = self.sendable(destination)
            queue.check(message.envelope, message.size)
        except Refusal:
            return False
        copy = message.copy()
        copy.dead_letter_source = message.dead_letter_source
        queue.put(copy)
        return True

    def _check_new(self, name: str) -> None:
        if name.lower() in self.queues or name.lower() in self.topics:
            raise Refusal(Condition.ENTITY_ALREADY_EXISTS, f"The messaging entity {name!r} already exists.")

    def _check_targets(self, name: str, options: QueueOptions | SubscriptionOptions) -> None:
        for target in (options.forward_to, options.forward_dead_lettered_messages_to):
            if target is None:
                continue
            path = _path_of(target)
            if path.lower() == name.lower():
                raise Refusal(Condition.ARGUMENT_ERROR, f"{name} cannot forward to itself")
            if self._entity(path) is None:
                raise Refusal(Condition.ARGUMENT_ERROR, f"{name} forwards to {path}, which does not exist")

    @staticmethod
    def _purge(queue: Queue) -> None:
        for each in _with_dead_letters(queue):
            each.purge()


def _with_dead_letters(queue: Queue) -> Iterator[Queue]:
    yield queue
    if queue.dead_letter is not None:
        yield queue.dead_letter


_Found = TypeVar("_Found")


def _found(entity: _Found | None, what: str) -> _Found:
    if entity is None:
        raise Refusal(Condition.NOT_FOUND, f"{what} does not exist.")
    return entity


def _path_of(target: str) -> str:
    """The path of a forwarding target, which clients write as a whole URL."""
    return urlsplit(target).path.strip("/") if "://" in target else target.strip("/")


def _inbox_options(options: TopicOptions) -> QueueOptions:
    return QueueOptions(
        max_size_in_megabytes=options.max_size_in_megabytes,
        requires_duplicate_detection=options.requires_duplicate_detection,
        duplicate_detection_history_time_window=options.duplicate_detection_history_time_window,
        max_message_size_in_kilobytes=options.max_message_size_in_kilobytes,
    )


def _subscription_queue_options(topic: TopicOptions, options: SubscriptionOptions) -> QueueOptions:
    limits = (topic.default_message_time_to_live, options.default_message_time_to_live)
    return QueueOptions(
        lock_duration=options.lock_duration,
        requires_session=options.requires_session,
        default_message_time_to_live=min((limit for limit in limits if limit is not None), default=None),
        dead_lettering_on_message_expiration=options.dead_lettering_on_message_expiration,
        max_delivery_count=options.max_delivery_count,
        status=options.status,
        auto_delete_on_idle=options.auto_delete_on_idle,
        forward_to=options.forward_to,
        forward_dead_lettered_messages_to=options.forward_dead_lettered_messages_to,
        max_size_in_megabytes=topic.max_size_in_megabytes,
        max_message_size_in_kilobytes=topic.max_message_size_in_kilobytes,
    )
