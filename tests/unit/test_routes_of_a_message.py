"""Which queues a message goes to, by what its sender declared."""

from __future__ import annotations

import pytest

from kombu_paired.declarations import DeclarationBook, Entity


@pytest.fixture
def book() -> DeclarationBook:
    return DeclarationBook()


def declare(book: DeclarationBook, exchange: str, type: str, **bindings: str) -> None:
    book.note("exchange_declare", {"exchange": exchange, "type": type, "durable": True})
    for queue, key in bindings.items():
        book.note("queue_declare", {"queue": queue, "durable": True})
        book.note("queue_bind", {"queue": queue, "exchange": exchange, "routing_key": key})


def test_the_default_exchange_leads_to_the_queue_of_that_name(book: DeclarationBook) -> None:
    assert book.queues_for(Entity("", "orders")) == ["orders"]


def test_a_direct_exchange_leads_to_what_is_bound_by_the_key(book: DeclarationBook) -> None:
    declare(book, "shop", "direct", orders="o", bills="b", archive="o")
    assert book.queues_for(Entity("shop", "o")) == ["orders", "archive"]
    assert book.queues_for(Entity("shop", "x")) == []


def test_a_fanout_exchange_leads_to_all(book: DeclarationBook) -> None:
    declare(book, "news", "fanout", a="", b="anything")
    assert book.queues_for(Entity("news", "whatever")) == ["a", "b"]


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("news.eu", "news.eu", True),
        ("news.*", "news.eu", True),
        ("news.*", "news", False),
        ("news.*", "news.eu.paris", False),
        ("news.#", "news", True),
        ("news.#", "news.eu.paris", True),
        ("#.paris", "news.eu.paris", True),
        ("#", "", True),
        ("*.#.paris", "news.paris", True),
        ("newsx", "news", False),
        ("news.eu", "newsxeu", False),
    ],
)
def test_a_topic_exchange_leads_to_what_matches(book: DeclarationBook, pattern: str, key: str, matches: bool) -> None:
    declare(book, "news", "topic", q=pattern)
    assert book.queues_for(Entity("news", key)) == (["q"] if matches else [])


def test_exchanges_that_are_bound_to_one_another_are_followed_and_a_circle_ends(book: DeclarationBook) -> None:
    declare(book, "a", "fanout", q="")
    declare(book, "b", "direct", r="k")
    book.note("exchange_bind", {"destination": "a", "source": "b", "routing_key": "k"})
    book.note("exchange_bind", {"destination": "b", "source": "a", "routing_key": ""})
    assert sorted(book.queues_for(Entity("b", "k"))) == ["q", "r"]


def test_of_a_headers_exchange_and_of_one_that_nobody_declared_nothing_is_known(book: DeclarationBook) -> None:
    declare(book, "filed", "headers", q="")
    assert book.queues_for(Entity("filed", "")) == []
    assert book.queues_for(Entity("nobody", "knows")) == []
