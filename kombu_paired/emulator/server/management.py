"""The management API: entities over HTTP, as the administration client speaks it. Pure: a request in, an answer out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree

from kombu_paired.emulator.broker.directory import Subscription, Topic
from kombu_paired.emulator.broker.entities import QueueOptions, SubscriptionOptions, TopicOptions, from_record
from kombu_paired.emulator.broker.errors import Condition, Refusal, missing
from kombu_paired.emulator.broker.namespace import Namespace
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.broker.rules import Rule
from kombu_paired.emulator.broker.stock import Counts
from kombu_paired.emulator.server import atom, rule_forms
from kombu_paired.emulator.server.http import HttpRequest, HttpResponse

__all__ = ("ManagementApi",)

_PATH = re.compile(
    r"/(?P<entity>.+?)(?:/subscriptions(?:/(?P<subscription>[^/]+)"
    r"(?P<rules>/rules(?:/(?P<rule>.+))?)?)?(?P<end>/?))?$",
    re.IGNORECASE,
)
_LISTS = re.compile(r"/\$Resources/(queues|topics)/?$", re.IGNORECASE)
_STATUS = {
    Condition.NOT_FOUND: 404,
    Condition.ENTITY_ALREADY_EXISTS: 409,
    Condition.ARGUMENT_ERROR: 400,
    Condition.NOT_ALLOWED: 400,
    Condition.NOT_IMPLEMENTED: 501,
}
_PAGE = 100


class ManagementApi:
    """Answers management requests.

    Arguments:
        namespace: what is administered.
        name: of the namespace.
        max_message_size: bytes, the limit of new entities.
    """

    def __init__(self, namespace: Namespace, name: str, max_message_size: int) -> None:
        self._namespace = namespace
        self._name = name
        kilobytes = max(1, max_message_size // 1024)
        self._queue_defaults = QueueOptions(max_message_size_in_kilobytes=kilobytes)
        self._topic_defaults = TopicOptions(max_message_size_in_kilobytes=kilobytes)

    def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer a request."""
        try:
            return self._route(request)
        except Refusal as refusal:
            return self.error(_STATUS.get(refusal.condition, 400), refusal.description)
        except ValueError as problem:
            return self.error(400, str(problem))

    @staticmethod
    def error(status: int, detail: str) -> HttpResponse:
        """An error, as the service words it."""
        return HttpResponse(status, atom.error(status, f"{detail} CorrelationId: emulator"), "application/xml")

    @staticmethod
    def entity_of(path: str) -> str | None:
        """The queue or topic that a path is about."""
        found = _PATH.fullmatch(path)
        return None if found is None or path.startswith("/$") else found["entity"].strip("/")

    # ------------------------------------------------------------------------------------------------ from the shell

    def ensure_queue(self, spec: str) -> None:
        """``NAME`` or ``NAME?requires_session=true&lock_duration=5``: there from now on."""
        name, values = _read_spec(spec)
        if name.lower() not in self._namespace.queues:
            self._namespace.create_queue(name, _with_values(self._queue_defaults, values))

    def ensure_topic(self, spec: str) -> None:
        """``NAME``, or ``NAME:SUBSCRIPTION,SUBSCRIPTION``: there from now on."""
        name, _, subscriptions = spec.partition(":")
        if name.lower() not in self._namespace.topics:
            self._namespace.create_topic(name, self._topic_defaults)
        for each in filter(None, subscriptions.split(",")):
            subscription, values = _read_spec(each)
            if subscription.lower() not in self._namespace.topic(name).subscriptions:
                self._namespace.create_subscription(name, subscription, _with_values(SubscriptionOptions(), values))

    # ------------------------------------------------------------------------------------------------------- routing

    def _route(self, request: HttpRequest) -> HttpResponse:
        if request.path.lower().rstrip("/") == "/$namespaceinfo":
            return self._namespace_info()
        listed = _LISTS.fullmatch(request.path)
        if listed is not None:
            return self._list_queues(request) if listed[1].lower() == "queues" else self._list_topics(request)
        found = _PATH.fullmatch(request.path)
        if found is None:
            raise Refusal(Condition.NOT_FOUND, f"nothing at {request.path}")
        entity = found["entity"].strip("/")
        if found["rules"]:
            return self._rules(request, entity, found["subscription"], (found["rule"] or "").strip("/"))
        if found["subscription"]:
            return self._subscription(request, entity, found["subscription"])
        if found["end"] is not None and request.path.lower().rstrip("/").endswith("/subscriptions"):
            return self._list_subscriptions(request, entity)
        return self._entity(request, entity)

    def _entity(self, request: HttpRequest, name: str) -> HttpResponse:
        if request.method == "GET":
            return self._get_entity(name)
        if request.method == "DELETE":
            self._delete(name)
            return HttpResponse(200)
        if request.method != "PUT":
            return self.error(405, f"{request.method} is not for entities.")
        if b"TopicDescription" in request.body:
            return self._put_topic(request, name)
        return self._put_queue(request, name)

    def _get_entity(self, name: str) -> HttpResponse:
        if name.lower() in self._namespace.queues:
            return _answer(self._queue_entry(self._namespace.queues[name.lower()]))
        if name.lower() in self._namespace.topics:
            return _answer(self._topic_entry(self._namespace.topics[name.lower()]))
        return _nothing()

    def _delete(self, name: str) -> None:
        if name.lower() not in self._namespace.queues and name.lower() not in self._namespace.topics:
            raise missing(name)
        self._namespace.delete(name)

    def _put_queue(self, request: HttpRequest, name: str) -> HttpResponse:
        if _is_update(request):
            queue = self._namespace.queue(name)
            options = atom.to_options(request.body, "QueueDescription", queue.options)
            return _answer(self._queue_entry(self._namespace.update_queue(name, options)))
        options = atom.to_options(request.body, "QueueDescription", self._queue_defaults)
        return _answer(self._queue_entry(self._namespace.create_queue(name, options)), 201)

    def _put_topic(self, request: HttpRequest, name: str) -> HttpResponse:
        if _is_update(request):
            topic = self._namespace.topic(name)
            options = atom.to_options(request.body, "TopicDescription", topic.options)
            return _answer(self._topic_entry(self._namespace.update_topic(name, options)))
        options = atom.to_options(request.body, "TopicDescription", self._topic_defaults)
        return _answer(self._topic_entry(self._namespace.create_topic(name, options)), 201)

    def _subscription(self, request: HttpRequest, topic: str, name: str) -> HttpResponse:
        if request.method == "DELETE":
            self._namespace.delete(self._namespace.subscription(topic, name).queue.path)
            return HttpResponse(200)
        if request.method == "GET":
            known = self._namespace.topics.get(topic.lower())
            found = known.subscriptions.get(name.lower()) if known is not None else None
            return _nothing() if found is None else _answer(self._subscription_entry(found))
        if request.method != "PUT":
            return self.error(405, f"{request.method} is not for subscriptions.")
        if _is_update(request):
            before = self._namespace.subscription(topic, name).options
            options = atom.to_options(request.body, "SubscriptionDescription", before)
            return _answer(self._subscription_entry(self._namespace.update_subscription(topic, name, options)))
        options = atom.to_options(request.body, "SubscriptionDescription", SubscriptionOptions())
        rule = _first_rule(request.body)
        made = self._namespace.create_subscription(topic, name, options)
        if rule is not None:
            self._namespace.set_rules(topic, name, rule)
        return _answer(self._subscription_entry(made), 201)

    def _rules(self, request: HttpRequest, topic: str, subscription: str, name: str) -> HttpResponse:
        rules = dict(self._namespace.subscription(topic, subscription).rules)
        path = f"{topic}/Subscriptions/{subscription}"
        if request.method == "GET" and not name:
            return _page(request, sorted(rules.items()), _rule_entry)
        if request.method == "GET":
            return _nothing() if name not in rules else _answer(_rule_entry((name, rules[name])))
        if request.method == "DELETE":
            self._namespace.remove_rule(path, name)
            return HttpResponse(200)
        rule = rule_forms.from_xml(ElementTree.fromstring(request.body))
        if _is_update(request):
            self._namespace.remove_rule(path, name)
        self._namespace.add_rule(path, name, rule)
        return _answer(_rule_entry((name, rule)), 201)

    # --------------------------------------------------------------------------------------------------------- lists

    def _list_queues(self, request: HttpRequest) -> HttpResponse:
        return _page(request, [queue for _, queue in sorted(self._namespace.queues.items())], self._queue_entry)

    def _list_topics(self, request: HttpRequest) -> HttpResponse:
        return _page(request, [topic for _, topic in sorted(self._namespace.topics.items())], self._topic_entry)

    def _list_subscriptions(self, request: HttpRequest, topic: str) -> HttpResponse:
        found = sorted(self._namespace.topic(topic).subscriptions.items())
        return _page(request, [subscription for _, subscription in found], self._subscription_entry)

    # ------------------------------------------------------------------------------------------------------- entries

    def _queue_entry(self, queue: Queue) -> ElementTree.Element:
        content = atom.element("QueueDescription")
        atom.from_options(content, queue.options)
        counts = queue.counts()
        dead = queue.dead_letter.size if queue.dead_letter is not None else 0
        atom.add(content, "SizeInBytes", counts.size + dead)
        atom.add(content, "SupportOrdering", True)
        _add_runtime(content, queue, counts)
        return atom.entry(queue.path, content, queue.updated)

    def _topic_entry(self, topic: Topic) -> ElementTree.Element:
        content = atom.element("TopicDescription")
        atom.from_options(content, topic.options)
        sizes = [subscription.queue.size for subscription in topic.subscriptions.values()]
        atom.add(content, "SizeInBytes", topic.inbox.size + sum(sizes))
        atom.add(content, "SubscriptionCount", len(topic.subscriptions))
        _add_runtime(content, topic.inbox, topic.inbox.counts())
        return atom.entry(topic.name, content, topic.inbox.updated)

    def _subscription_entry(self, subscription: Subscription) -> ElementTree.Element:
        content = atom.element("SubscriptionDescription")
        atom.from_options(content, subscription.options)
        _add_runtime(content, subscription.queue, subscription.queue.counts())
        return atom.entry(subscription.name, content, subscription.queue.updated)

    def _namespace_info(self) -> HttpResponse:
        content = atom.element("NamespaceInfo")
        now = atom.moment(self._namespace.clock())
        for name, text in (
            ("CreatedTime", now),
            ("MessagingSKU", "Standard"),
            ("ModifiedTime", now),
            ("Name", self._name),
            ("NamespaceType", "Messaging"),
        ):
            atom.add(content, name, text)
        return _answer(atom.entry(self._name, content, self._namespace.clock()))


def _add_runtime(content: ElementTree.Element, queue: Queue, counts: Counts) -> None:
    atom.add(content, "MessageCount", counts.total)
    details = atom.element("CountDetails")
    for name, value in (
        ("ActiveMessageCount", counts.active + counts.deferred),
        ("DeadLetterMessageCount", counts.dead_lettered),
        ("ScheduledMessageCount", counts.scheduled),
        ("TransferDeadLetterMessageCount", 0),
        ("TransferMessageCount", 0),
    ):
        atom.add(details, name, value, atom.COUNTS)
    content.append(details)
    for name, when in (("CreatedAt", queue.created), ("UpdatedAt", queue.updated), ("AccessedAt", queue.accessed)):
        atom.add(content, name, atom.moment(when))
    atom.add(content, "EntityAvailabilityStatus", "Available")


def _answer(entry: ElementTree.Element, status: int = 200) -> HttpResponse:
    return HttpResponse(status, atom.write(entry))


def _nothing() -> HttpResponse:
    """What the service answers for an entity that does not exist: an empty feed."""
    return HttpResponse(200, atom.feed("Publicly Listed Services", []))


def _page(request: HttpRequest, items: list[Any], make: Callable[[Any], ElementTree.Element]) -> HttpResponse:
    """Part of a list. As in the service, no page has more than a hundred, whatever is asked for."""
    skip, top = int(request.query.get("$skip", 0)), min(max(1, int(request.query.get("$top", _PAGE))), _PAGE)
    page = items[skip : skip + top]
    more = skip + top < len(items)
    next_page = f"{request.path}?$skip={skip + top}&$top={top}" if more else None
    return HttpResponse(200, atom.feed(request.path, [make(item) for item in page], next_page))


def _is_update(request: HttpRequest) -> bool:
    return request.headers.get("if-match", "").strip() == "*"


def _rule_entry(rule: tuple[str, Rule]) -> ElementTree.Element:
    return atom.entry(rule[0], rule_forms.to_xml(*rule), 0.0)


def _first_rule(body: bytes) -> dict[str, Rule] | None:
    """The rule that a new subscription asks for; None for the default."""
    found = ElementTree.fromstring(body).find(f".//{{{atom.SERVICE_BUS}}}DefaultRuleDescription")
    if found is None:
        return None
    name = found.findtext(f"{{{atom.SERVICE_BUS}}}Name") or "$Default"
    return {name: rule_forms.from_xml(found)}


def _read_spec(spec: str) -> tuple[str, dict[str, str]]:
    name, _, query = spec.partition("?")
    return name, dict(parse_qsl(query))


def _with_values(options: Any, values: dict[str, str]) -> Any:
    """Options with values from the command line."""
    unknown = [key for key in values if not hasattr(options, key)]
    if unknown:
        raise ValueError(f"no property is called {unknown[0]!r}")
    return from_record(type(options), {key: _convert(text) for key, text in values.items()}, options)


def _convert(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text
