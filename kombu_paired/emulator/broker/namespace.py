"""A namespace: how messages get from one entity to another, and the administration of entities. Pure.

The clock and the journal are injected. :mod:`kombu_paired.emulator.broker.queues` has what happens inside a queue.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

from kombu_paired.emulator.broker.directory import (
    SUBSCRIPTIONS,
    Directory,
    Subscription,
    Topic,
    with_dead_letters,
)
from kombu_paired.emulator.broker.entities import (
    DEAD_LETTER_SUFFIX,
    QueueOptions,
    SubscriptionOptions,
    TopicOptions,
    check_name,
    check_options,
)
from kombu_paired.emulator.broker.errors import Condition, Refusal, exists_already, missing
from kombu_paired.emulator.broker.journals import NamespaceJournal, NoNamespaceJournal
from kombu_paired.emulator.broker.messages import Message
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.broker.rules import Rule
from kombu_paired.emulator.broker.timetable import Timetable
from kombu_paired.emulator.wire.codec import Symbol
from kombu_paired.emulator.wire.envelope import Envelope

__all__ = ("Namespace",)

_SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
_HOPS = 4
_UNCOUNTED = 2**31 - 1


class Namespace(Directory):
    """All entities, their messages and their administration.

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
        super().__init__()
        self.clock = clock
        self.journal: NamespaceJournal = journal or NoNamespaceJournal()
        self._on_ready = on_ready
        self._timetable = Timetable()
        self._on_gone = on_gone or (lambda path: None)

    # ------------------------------------------------------------------------------------------------------ sending

    def send(self, path: str, payloads: list[bytes]) -> list[int]:
        """Store messages, all or none, and their sequence numbers."""
        queue = self.sendable(path)
        messages = [_message(payload) for payload in payloads]
        for message in messages:
            queue.check(message.envelope, message.size)
        self._check_room(path, queue, sum(message.size for message in messages))
        return [queue.put(message) for message in messages]

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
        inbox = self._queue(name, _inbox_options(options))
        topic = self.topics[name.lower()] = Topic(name, options, inbox)
        self.journal.entity_saved(name, options)
        return topic

    def create_subscription(self, topic_name: str, name: str, options: SubscriptionOptions) -> Subscription:
        """A new subscription of a topic that exists."""
        check_name(name, 50, "subscription")
        check_options(options)
        topic = self.topic(topic_name)
        if name.lower() in topic.subscriptions:
            raise exists_already()
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
        elif SUBSCRIPTIONS in key:
            topic, _, name = key.partition(SUBSCRIPTIONS)
            del self.topics[topic].subscriptions[name]
            _purge(found)
        else:
            del self.queues[key]
            _purge(found)
        self.journal.entity_removed(found.name if isinstance(found, Topic) else found.path)
        self._on_gone(path)

    def add_rule(self, path: str, name: str, rule: Rule) -> None:
        """One more rule for the subscription at a path."""
        subscription = self.subscription_at(path)
        if name in subscription.rules:
            raise exists_already()
        self._set_rules(subscription, {**subscription.rules, name: rule})

    def remove_rule(self, path: str, name: str) -> None:
        """One rule less for the subscription at a path."""
        subscription = self.subscription_at(path)
        if name not in subscription.rules:
            raise missing(f"{subscription.queue.path}/Rules/{name}")
        self._set_rules(subscription, {known: rule for known, rule in subscription.rules.items() if known != name})

    def set_rules(self, topic_name: str, name: str, rules: dict[str, Rule]) -> None:
        """Replace the rules of a subscription."""
        self._set_rules(self.subscription(topic_name, name), rules)

    def _set_rules(self, subscription: Subscription, rules: dict[str, Rule]) -> None:
        subscription.rules = rules
        self.journal.rules_saved(subscription.queue.path, rules)

    def _new_queue(self, path: str, options: QueueOptions) -> Queue:
        dead_options = QueueOptions(
            lock_duration=options.lock_duration,
            max_size_in_megabytes=options.max_size_in_megabytes,
            max_delivery_count=_UNCOUNTED,
        )
        dead = self._queue(path + DEAD_LETTER_SUFFIX, dead_options)
        queue = self._queue(path, options, dead)
        self._reconfigure(queue, options)
        return queue

    def _queue(self, path: str, options: QueueOptions, dead_letter: Queue | None = None) -> Queue:
        """One that ticks with all others: there may be thousands, and most have nothing to do."""
        return Queue(path, options, self.clock, self.journal, dead_letter, self._on_ready, self._timetable)

    def _reconfigure(self, queue: Queue, options: QueueOptions) -> None:
        queue.options, queue.updated = options, self.clock()
        queue.outlet = (lambda message: self._forward(queue, message)) if options.forward_to else None
        dead = queue.dead_letter
        if dead is not None:
            onward = options.forward_dead_lettered_messages_to
            dead.options = replace(dead.options, forward_to=onward, lock_duration=options.lock_duration)
            dead.outlet = (lambda message: self._forward_dead(dead, message)) if onward else None

    def _check_new(self, name: str) -> None:
        if name.lower() in self.queues or name.lower() in self.topics:
            raise exists_already()

    def _check_targets(self, name: str, options: QueueOptions | SubscriptionOptions) -> None:
        for target in (options.forward_to, options.forward_dead_lettered_messages_to):
            if target is None:
                continue
            path = _path_of(target)
            if path.lower() == name.lower():
                raise Refusal(Condition.ARGUMENT_ERROR, f"{name} cannot forward to itself")
            if self.entity(path) is None:
                raise Refusal(Condition.ARGUMENT_ERROR, f"{name} forwards to {path}, which does not exist")

    # -------------------------------------------------------------------------------------------- time, and a store

    def tick(self) -> None:
        """Do what is due in every queue."""
        self._timetable.run(self.clock())

    def delete_idle(self) -> None:
        """Delete what has been idle for long enough."""
        now = self.clock()
        for queue in list(self.all_queues()):
            limit = queue.options.auto_delete_on_idle
            if limit is not None and queue.attached == 0 and max(queue.accessed, queue.updated) + limit <= now:
                self.delete(queue.path)

    def restore(
        self, path: str, options: QueueOptions | TopicOptions | SubscriptionOptions, rules: dict[str, Rule] | None
    ) -> None:
        """Put an entity back that a store kept: nothing is checked, and nothing written down."""
        if isinstance(options, TopicOptions):
            inbox = self._queue(path, _inbox_options(options))
            self.topics[path.lower()] = Topic(path, options, inbox)
        elif isinstance(options, QueueOptions):
            self.queues[path.lower()] = self._new_queue(path, options)
        else:
            topic = self.topics[path.lower().partition(SUBSCRIPTIONS)[0]]
            name = path.rpartition("/")[2]
            queue = self._new_queue(path, _subscription_queue_options(topic.options, options))
            subscription = topic.subscriptions[name.lower()] = Subscription(name, options, queue)
            subscription.rules = rules if rules is not None else subscription.rules


def _message(payload: bytes) -> Message:
    envelope = Envelope.read(payload)
    if envelope.message_id is None:  # every message has one: clients rest on it
        envelope = envelope.with_message_id(uuid.uuid4().hex)
    scheduled = envelope.annotations.get(_SCHEDULED)
    return Message(envelope, len(payload), scheduled=None if scheduled is None else scheduled / 1000)


def _purge(queue: Queue) -> None:
    for each in with_dead_letters(queue):
        each.purge()


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
