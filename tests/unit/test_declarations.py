"""What is remembered of the application's declarations, and what of it a message takes along."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.brokers.roles import Sender
from kombu_paired.declarations import (
    OPERATIONS,
    REPLY_QUEUES,
    Declaration,
    DeclarationBook,
    Entity,
    decode_declarations,
    encode_declarations,
)
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind


@pytest.fixture
def book():
    return Book()


class Book(DeclarationBook):
    """A book in which to write briefly."""

    def exchange(self, name, type="direct", **arguments):
        return self.note("exchange_declare", {"exchange": name, "type": type, "durable": True, **arguments})

    def queue(self, name, **arguments):
        return self.note("queue_declare", {"queue": name, "durable": True, **arguments})

    def bind(self, queue, exchange, routing_key="", **arguments):
        return self.note("queue_bind", {"queue": queue, "exchange": exchange, "routing_key": routing_key, **arguments})

    def bind_exchange(self, destination, source, routing_key="", **arguments):
        arguments = {"destination": destination, "source": source, "routing_key": routing_key, **arguments}
        return self.note("exchange_bind", arguments)


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (Entity("", "orders"), "orders"),
        (Entity("shop", "orders"), "shop/orders"),
        (Entity("fanned", ""), "fanned"),
        (Entity("", ""), ""),
    ],
)
def test_an_entity_is_called_by_its_queue_or_by_exchange_and_routing_key(entity, path):
    assert entity.path == path


@pytest.mark.parametrize(
    ("declaration", "name"),
    [
        (Declaration("queue_declare", {"queue": "orders"}), "orders"),
        (Declaration("queue_bind", {"queue": "orders", "exchange": "shop"}), "orders"),
        (Declaration("exchange_declare", {"exchange": "shop"}), "shop"),
        (Declaration("exchange_bind", {"destination": "archive", "source": "shop"}), "archive"),
        (Declaration("queue_declare", {"queue": None}), ""),
        (Declaration("queue_declare", {}), ""),
    ],
)
def test_a_declaration_is_called_by_what_it_declares_or_by_the_target_of_a_binding(declaration, name):
    assert declaration.name == name


# -- what an entity needs -------------------------------------------------------------------------------------------


def test_an_entity_of_which_nothing_was_declared_needs_nothing(book):
    book.queue("mails")
    assert book.for_entity(Entity("", "orders")) == []
    assert book.for_entity(Entity("shop", "orders")) == []


def test_the_default_exchange_needs_the_queue_alone(book):
    book.exchange("orders")
    orders = book.queue("orders")
    book.bind("orders", "orders", "orders")
    assert book.for_entity(Entity("", "orders")) == [orders]


def test_an_exchange_needs_itself_its_queue_and_the_binding_in_this_order_whatever_was_declared_first(book):
    binding = book.bind("orders", "shop", "orders")
    orders = book.queue("orders")
    shop = book.exchange("shop")
    assert book.for_entity(Entity("shop", "orders")) == [shop, orders, binding]


@pytest.mark.parametrize(
    ("entity", "found"),
    [
        (Entity("", "orders"), Entity("", "orders")),
        (Entity("shop", "orders"), Entity("", "orders")),
        (Entity("shop", "returns"), Entity("", "orders")),
        (Entity("shop", "audited"), Entity("shop", "audited")),  # two queues
        (Entity("shop", "routed"), Entity("shop", "routed")),  # an exchange
        (Entity("shop", "unknown"), Entity("shop", "unknown")),
        (Entity("topic", "orders"), Entity("topic", "orders")),
        (Entity("nowhere", "orders"), Entity("nowhere", "orders")),
    ],
)
def test_what_a_direct_exchange_leads_to_alone_is_that_queue(book, entity, found):
    book.exchange("shop")
    book.exchange("topic", "topic")
    for key in ("orders", "returns", "audited"):
        book.bind("orders", "shop", key)
    book.bind("audit", "shop", "audited")
    book.bind_exchange("topic", "shop", "routed")
    book.bind("orders", "topic", "orders")
    book.bind("orders", "nowhere", "orders")
    assert book.queue_of(entity) == found


def test_a_direct_exchange_needs_only_the_bindings_with_the_messages_routing_key(book):
    shop = book.exchange("shop", "direct")
    book.queue("mails")
    book.bind("mails", "shop", "mails")
    orders = book.queue("orders")
    binding = book.bind("orders", "shop", "orders")
    assert book.for_entity(Entity("shop", "orders")) == [shop, orders, binding]


def test_an_exchange_without_a_type_is_a_direct_one_as_kombu_declares_it(book):
    book.exchange("shop", None)
    book.queue("mails")
    book.bind("mails", "shop", "mails")
    assert [each.name for each in book.for_entity(Entity("shop", "orders"))] == ["shop"]


@pytest.mark.parametrize("type", ["topic", "fanout", "headers", "x-consistent-hash"])
def test_any_other_exchange_needs_all_its_bindings_as_only_the_broker_knows_how_they_match(book, type):
    shop = book.exchange("shop", type)
    orders, mails = book.queue("orders"), book.queue("mails")
    to_orders, to_mails = book.bind("orders", "shop", "o.*"), book.bind("mails", "shop", "m.*")
    assert book.for_entity(Entity("shop", "o.1")) == [shop, orders, to_orders, mails, to_mails]


def test_an_exchange_that_somebody_else_declared_needs_all_its_bindings(book):
    orders = book.queue("orders")
    binding = book.bind("orders", "amq.topic", "o.*")
    assert book.for_entity(Entity("amq.topic", "o.1")) == [orders, binding]


def test_a_message_takes_nothing_along_of_other_exchanges(book):
    book.exchange("blog")
    book.queue("posts")
    book.bind("posts", "blog", "orders")
    shop = book.exchange("shop")
    assert book.for_entity(Entity("shop", "orders")) == [shop]


def test_the_last_declaration_of_a_thing_is_the_one_that_counts(book):
    book.queue("orders")
    orders = book.queue("orders", arguments={"x-max-priority": 9})
    book.exchange("shop", "direct")
    shop = book.exchange("shop", "topic")
    book.bind("orders", "shop", "o.*", nowait=True)
    binding = book.bind("orders", "shop", "o.*")
    assert book.for_entity(Entity("shop", "o.1")) == [shop, orders, binding]


def test_bindings_with_different_arguments_are_different_bindings(book):
    shop = book.exchange("shop", "headers")
    orders = book.queue("orders")
    one = book.bind("orders", "shop", arguments={"x-match": "all", "land": "de"})
    two = book.bind("orders", "shop", arguments={"x-match": "all", "land": "at"})
    found = book.for_entity(Entity("shop", ""))
    assert found[:2] == [shop, orders]
    assert one in found
    assert two in found


# -- what does not last ---------------------------------------------------------------------------------------------

NOT_LASTING = [
    {"exclusive": True},
    {"auto_delete": True},
    {"arguments": {"x-expires": 60_000}},
    {"arguments": {"x-expires": 60_000, "x-max-priority": 9}},
]


@pytest.mark.parametrize("arguments", NOT_LASTING)
def test_a_queue_that_goes_with_its_consumer_is_not_carried(book, arguments):
    assert not book.queue("reply.1", **arguments).is_lasting
    assert book.for_entity(Entity("", "reply.1")) == []


def test_a_reply_queue_that_the_broker_keeps_is_remembered_for_replies_alone(book):
    replies = book.queue("replies", auto_delete=True, arguments={"x-expires": 86_400_000})
    assert book.for_reply("replies") == [replies]
    assert book.for_entity(Entity("", "replies")) == []
    book.forget_queue("replies")
    assert book.for_reply("replies") == book.for_reply("") == []


@pytest.mark.parametrize(
    "arguments", [{"auto_delete": True, "exclusive": True}, {"auto_delete": True, "durable": False}, {}]
)
def test_any_other_queue_is_no_reply_queue(book, arguments):
    book.queue("replies", **arguments)
    assert book.for_reply("replies") == []


def test_reply_queues_of_threads_that_are_gone_are_forgotten(book):
    for n in range(REPLY_QUEUES + 1):
        book.queue(f"replies.{n}", auto_delete=True)
    assert book.for_reply("replies.0") == []
    assert len(book.for_reply("replies.1")) == 1


@pytest.mark.parametrize("name", ["", None])
def test_a_queue_that_the_broker_names_is_not_carried(book, name):
    assert not book.queue(name).is_lasting
    assert book.for_entity(Entity("", "")) == []


@pytest.mark.parametrize("arguments", NOT_LASTING)
def test_a_binding_to_such_a_queue_is_not_carried_either(book, arguments):
    shop = book.exchange("shop", "fanout")
    book.queue("reply.1", **arguments)
    book.bind("reply.1", "shop")
    orders = book.queue("orders")
    binding = book.bind("orders", "shop")
    assert book.for_entity(Entity("shop", "")) == [shop, orders, binding]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"durable": False}, {"exclusive": False, "auto_delete": False}, {"arguments": None}, {"arguments": {"x": 1}}],
)
def test_any_other_queue_is_carried(book, arguments):
    orders = book.queue("orders", **arguments)
    assert orders.is_lasting
    assert book.for_entity(Entity("", "orders")) == [orders]


def test_the_default_exchange_is_nothing_to_declare(book):
    assert not book.exchange("").is_lasting


def test_how_to_answer_is_not_part_of_a_declaration(book):
    assert book.queue("orders", nowait=True, channel=object(), passive=False).arguments == {
        "queue": "orders",
        "durable": True,
    }


def test_the_arguments_of_the_caller_are_not_changed(book):
    arguments = {"queue": "orders", "nowait": True}
    book.note("queue_declare", arguments)
    assert arguments == {"queue": "orders", "nowait": True}


def test_a_question_whether_a_queue_exists_is_no_declaration_of_it(book):
    question = book.queue("orders", passive=True)
    assert question.arguments["passive"] is True
    assert book.for_entity(Entity("", "orders")) == []
    declared = book.queue("orders", arguments={"x-max-priority": 9})
    book.note("queue_declare", {"queue": "orders", "passive": True})
    assert book.for_entity(Entity("", "orders")) == [declared]


# -- exchanges bound to exchanges -----------------------------------------------------------------------------------


def test_an_exchange_behind_an_exchange_is_declared_with_its_queues_before_the_binding_to_it(book):
    shop = book.exchange("shop", "topic")
    archive = book.exchange("archive", "fanout")
    everything = book.queue("everything")
    into_queue = book.bind("everything", "archive")
    into_archive = book.bind_exchange("archive", "shop", "#")
    assert book.for_entity(Entity("shop", "o.1")) == [shop, archive, everything, into_queue, into_archive]


def test_a_direct_exchange_behind_a_direct_one_needs_only_the_messages_routing_key(book):
    shop, second = book.exchange("shop"), book.exchange("second")
    orders, _ = book.queue("orders"), book.queue("mails")
    book.bind("mails", "second", "mails")
    binding = book.bind("orders", "second", "orders")
    book.bind_exchange("second", "shop", "mails")
    behind = book.bind_exchange("second", "shop", "orders")
    assert book.for_entity(Entity("shop", "orders")) == [shop, second, orders, binding, behind]


def test_an_exchange_bound_to_itself_ends_the_search(book):
    shop = book.exchange("shop", "topic")
    book.bind_exchange("shop", "shop", "#")
    assert book.for_entity(Entity("shop", "o.1"))[0] == shop


def test_exchanges_bound_in_a_circle_end_the_search_and_every_queue_on_the_way_is_found(book):
    names = ["a", "b", "c"]
    for name, following in zip(names, [*names[1:], names[0]], strict=True):
        book.exchange(name, "fanout")
        book.queue(f"queue-{name}")
        book.bind(f"queue-{name}", name)
        book.bind_exchange(following, name)
    for start in names:
        found = book.for_entity(Entity(start, ""))
        assert {each.name for each in found if each.operation == "queue_declare"} == {f"queue-{x}" for x in names}
        assert {each.name for each in found if each.operation == "exchange_declare"} == set(names)


def test_an_exchange_that_is_reached_by_two_ways_needs_both(book):
    # Whether the message takes the one or the other only the broker knows.
    book.exchange("shop", "topic")
    for way in ("left", "right"):
        book.exchange(way, "topic")
        book.bind_exchange(way, "shop", f"{way}.*")
        book.bind_exchange("goal", way, "#")
    book.exchange("goal", "fanout")
    book.queue("orders")
    book.bind("orders", "goal")
    found = book.for_entity(Entity("shop", "right.1"))
    bindings = {(each.arguments["source"], each.name) for each in found if each.operation == "exchange_bind"}
    assert bindings == {("shop", "left"), ("shop", "right"), ("left", "goal"), ("right", "goal")}


def test_exchanges_in_a_circle_that_is_entered_at_either_need_both_ways_round(book):
    book.exchange("shop", "topic")
    for name in ("left", "right"):
        book.exchange(name, "fanout")
        book.queue(f"queue-{name}")
        book.bind(f"queue-{name}", name)
        book.bind_exchange(name, "shop", f"{name}.*")
    book.bind_exchange("right", "left")
    book.bind_exchange("left", "right")
    found = book.for_entity(Entity("shop", "right.1"))
    bindings = {(each.arguments["source"], each.name) for each in found if each.operation == "exchange_bind"}
    assert bindings == {("shop", "left"), ("shop", "right"), ("left", "right"), ("right", "left")}


def test_two_bindings_of_one_exchange_to_another_are_both_needed(book):
    book.exchange("shop", "topic")
    book.exchange("archive", "fanout")
    keys = {"o.*", "m.*"}
    for key in keys:
        book.bind_exchange("archive", "shop", key)
    found = book.for_entity(Entity("shop", "m.1"))
    assert {each.arguments["routing_key"] for each in found if each.operation == "exchange_bind"} == keys


def test_nothing_is_declared_twice_however_often_it_is_bound(book):
    shop, orders = book.exchange("shop", "topic"), book.queue("orders")
    bindings = [book.bind("orders", "shop", f"{i}.*") for i in range(5)]
    assert book.for_entity(Entity("shop", "1.1")) == [shop, orders, *bindings]


names = st.sampled_from(["a", "b", "c", "d"])
keys = st.sampled_from(["", "x", "y"])
graphs = st.lists(
    st.tuples(st.just("exchange"), names, st.sampled_from(["direct", "topic", "fanout"]))
    | st.tuples(st.just("queue"), names)
    | st.tuples(st.just("bind"), names, names, keys)
    | st.tuples(st.just("bind_exchange"), names, names, keys),
    max_size=25,
)


def book_of(graph):
    book = Book()
    for method, *arguments in graph:
        getattr(book, method)(*arguments)
    return book


@given(graphs, st.sampled_from(["", "a", "b"]), keys | names)
def test_whatever_was_declared_everything_is_declared_before_it_is_bound(graph, exchange, routing_key):
    book = book_of(graph)
    declared_by_us = {name for kind, name, *_ in graph if kind == "exchange"}
    exchanges, queues = set(), set()
    for each in book.for_entity(Entity(exchange, routing_key)):
        if each.operation == "exchange_declare":
            exchanges.add(each.name)
        elif each.operation == "queue_declare":
            queues.add(each.name)
        elif each.operation == "queue_bind":
            assert each.name in queues
            assert each.arguments["exchange"] in exchanges or each.arguments["exchange"] not in declared_by_us
        else:
            assert each.name in exchanges or each.name not in declared_by_us
            assert each.arguments["source"] in exchanges or each.arguments["source"] not in declared_by_us


@given(graphs, names, keys)
def test_whatever_was_declared_every_way_that_a_message_may_take_to_a_queue_is_carried(graph, start, routing_key):
    types = {name: type for kind, name, *types in graph if kind == "exchange" for type in types}
    queues = {name for kind, name, *_ in graph if kind == "queue"}
    bindings = {each for each in graph if each[0] in ("bind", "bind_exchange")}

    def leaving(exchange):
        """What a message may take from here: a direct exchange asks for its key, others may let it through."""
        return {
            each
            for each in bindings
            if each[2] == exchange and (types.get(exchange) != "direct" or each[3] == routing_key)
        }

    def following(exchanges):
        """All bindings that a message may take from these exchanges on."""
        found, waiting = set(), set(exchanges)
        while new := {each for exchange in waiting for each in leaving(exchange)} - found:
            found |= new
            waiting = {target for kind, target, *_ in new if kind == "bind_exchange"}
        return found

    def leads_to_a_queue(binding):
        behind = [binding] if binding[0] == "bind" else following({binding[1]})
        return any(kind == "bind" and target in queues for kind, target, *_ in behind)

    needed = book_of(graph).for_entity(Entity(start, routing_key))
    carried = {
        ("bind", each.name, each.arguments["exchange"], each.arguments["routing_key"])
        if each.operation == "queue_bind"
        else ("bind_exchange", each.name, each.arguments["source"], each.arguments["routing_key"])
        for each in needed
        if each.operation.endswith("bind")
    }
    ways = following({start})
    assert {each for each in ways if leads_to_a_queue(each)} <= carried <= ways
    assert {each for each in carried if each[0] == "bind"} == {e for e in ways if e[0] == "bind" and e[1] in queues}
    assert {each.name for each in needed if each.operation == "queue_declare"} == {
        target for kind, target, *_ in ways if kind == "bind" and target in queues
    }


# -- in a header ----------------------------------------------------------------------------------------------------

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
plain |= st.datetimes(timezones=st.just(timezone.utc)) | st.decimals(allow_nan=False)
argument_values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=3)
declarations = st.builds(
    Declaration, st.sampled_from(sorted(OPERATIONS)), st.dictionaries(st.text(), argument_values, max_size=5)
)


@given(st.lists(declarations, max_size=5))
def test_declarations_come_back_from_a_header_as_they_were(declared):
    text = encode_declarations(declared)
    assert "\n" not in text
    assert decode_declarations(text) == declared


def test_no_declarations_are_a_header_too():
    assert decode_declarations(encode_declarations([])) == []


def test_arguments_that_brokers_take_and_json_does_not_know_come_back():
    arguments = {"queue": "orders", "arguments": {"a": b"\xff", "b": Decimal("1.5"), "c": datetime(2030, 1, 2)}}
    declared = [Declaration("queue_declare", arguments)]
    assert decode_declarations(encode_declarations(declared)) == declared


# -- threads --------------------------------------------------------------------------------------------------------


def test_many_threads_may_note_and_ask_at_once():
    book = Book()
    book.exchange("shop", "fanout")
    together = threading.Barrier(8)

    def note_and_ask(thread):
        together.wait(30)
        for i in range(50):
            book.queue(f"{thread}-{i}")
            book.bind(f"{thread}-{i}", "shop")
            book.for_entity(Entity("shop", ""))

    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(note_and_ask, thread) for thread in range(8)]:
            each.result()
    assert len(book.for_entity(Entity("shop", ""))) == 1 + 2 * 8 * 50


# -- a link is told what the book knows -------------------------------------------------------------------------------


class RememberingSender(Sender):
    """A link that knows an exchange only if it was declared over this very link, as Kombu's virtual channels do."""

    is_fresh = False
    keeps_exchanges = True

    def __init__(self):
        super().__init__()
        self.told, self.calls, self.exchanges = [], 0, set()
        self.failure = None

    def declare(self, declarations, timeout):
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        for each in declarations:
            source = each.arguments.get("source" if each.operation == "exchange_bind" else "exchange")
            if each.operation == "exchange_declare" and not each.is_question:
                self.exchanges.add(source)
            elif source and source not in self.exchanges:
                raise NamespaceFailure(FailureKind.REJECTED, "primary", KeyError(source))
            self.told.append((each.operation, each.name))
        return "answered"

    def send(self, message, timeout): ...
    def send_batch(self, messages, timeout): ...
    def close(self): ...

    def drop(self):
        self.exchanges.clear()
        self._forget_all_declared()


def test_a_binding_over_a_link_that_never_saw_its_ends_comes_after_them(book):
    link = RememberingSender()
    book.exchange("shop")
    book.queue("orders")
    assert link.declare_one(book.bind("orders", "shop", "new"), book, 1) == "answered"
    assert link.told == [("exchange_declare", "shop"), ("queue_declare", "orders"), ("queue_bind", "orders")]
    assert link.calls == 1


def test_an_exchange_that_is_bound_to_another_comes_after_both(book):
    link = RememberingSender()
    book.exchange("shop")
    book.exchange("mails")
    link.declare_one(book.bind_exchange("mails", "shop"), book, 1)
    assert link.told == [("exchange_declare", "shop"), ("exchange_declare", "mails"), ("exchange_bind", "mails")]


def test_a_question_about_an_exchange_creates_it_only_where_the_link_alone_knows_it(book):
    link = RememberingSender()
    book.exchange("shop")
    question = book.exchange("shop", passive=True)
    link.declare_one(question, book, 1)
    assert link.told == [("exchange_declare", "shop")] * 2
    asks_the_broker = RememberingSender()
    asks_the_broker.keeps_exchanges = False
    with pytest.raises(NamespaceFailure):
        asks_the_broker.declare_one(question, book, 1)


def test_what_was_declared_over_a_link_is_not_said_again_before_a_message(book):
    link = RememberingSender()
    for declaration in (book.exchange("shop"), book.queue("orders"), book.bind("orders", "shop", "new")):
        link.declare_one(declaration, book, 1)
    assert link.calls == 3
    link.ensure_declared(Entity("shop", "new"), book, 1)
    assert link.calls == 3
    book.bind("orders", "shop", "new", arguments={"x-match": "any"})
    link.ensure_declared(Entity("shop", "new"), book, 1)
    assert link.calls == 3, "once for an entity"
    link.ensure_declared(Entity("", "orders"), book, 1)
    assert link.calls == 3


@pytest.mark.parametrize("how", ["it was missing", "the link is new"])
def test_it_is_all_said_again_when(book, how):
    link, entity = RememberingSender(), Entity("shop", "new")
    book.exchange("shop")
    book.queue("orders")
    book.bind("orders", "shop", "new")
    link.ensure_declared(entity, book, 1)
    first, link.told = link.told, []
    if how == "it was missing":
        link.forget_declared(entity)
    else:
        link.drop()
    link.ensure_declared(entity, book, 1)
    assert link.told == first


def test_the_application_declares_as_often_as_it_likes(book):
    link = RememberingSender()
    queue = book.queue("orders")
    link.declare_one(queue, book, 1)
    link.declare_one(queue, book, 1)
    assert link.told == [("queue_declare", "orders")] * 2


def test_a_declaration_that_failed_was_not_said_and_stored_no_message(book):
    link = RememberingSender()
    queue = book.queue("orders")
    link.failure = NamespaceFailure(FailureKind.TIMEOUT, "primary", TimeoutError(), maybe_stored=True)
    for attempt in (
        lambda: link.declare_one(queue, book, 1),
        lambda: link.ensure_declared(Entity("", "orders"), book, 1),
    ):
        with pytest.raises(NamespaceFailure) as caught:
            attempt()
        assert not caught.value.maybe_stored
    link.failure = None
    link.ensure_declared(Entity("", "orders"), book, 1)
    assert link.told == [("queue_declare", "orders")]
