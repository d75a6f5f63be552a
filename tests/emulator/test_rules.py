"""The rules of subscriptions: what they let through, and how they come back as they were written."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_paired.emulator.broker.errors import Refusal
from kombu_paired.emulator.broker.rules import ALL, NONE, Rule
from kombu_paired.emulator.server import rule_forms
from kombu_paired.emulator.wire.codec import Symbol, encode
from kombu_paired.emulator.wire.envelope import Envelope

OWN = {"color": "red", "size": 7, "weight": 1.5, "fresh": True, "Half Price": "it's", "empty": None}


@pytest.fixture
def parcel() -> Envelope:
    properties = ["id-1", None, "paris", "orders", "answers", "cor-1", Symbol("text/plain"), *[None] * 3, "ses-1"]
    sections = ((0x73, properties), (0x74, OWN), (0x75, b"x"))
    return Envelope.read(b"".join(b"\x00\x53" + bytes([code]) + encode(value) for code, value in sections))


@pytest.mark.parametrize(
    ("expression", "let_through"),
    [
        ("1=1", True),
        ("1 = 0", False),
        ("color = 'red'", True),
        ("COLOR='red'", True),
        ("user.color <> 'blue' AND size >= 7", True),
        ("size > 7 or weight < 2", True),
        ("size = 7.0", True),
        ("size > -1", True),
        ("size = '7'", False),
        ("fresh = TRUE", True),
        ("fresh = 1", False),
        ("NOT color = 'red'", False),
        ("not (size = 1 OR size = 2)", True),
        ("size IN (1, 7)", True),
        ("size NOT IN (1, 7)", False),
        ("color LIKE 'r_d'", True),
        ("color LIKE '%e%' AND color NOT LIKE 'b%'", True),
        ("color LIKE 'r!_d' ESCAPE '!'", False),
        ("[Half Price] = 'it''s'", True),
        ("\"Half Price\" = 'it''s'", True),
        ("nothing IS NULL AND color IS NOT NULL AND empty IS NULL", True),
        ("EXISTS(color) AND NOT EXISTS(nothing)", True),
        ("sys.Label = 'orders' AND sys.CorrelationId = 'cor-1'", True),
        ("sys.ContentType = 'text/plain' AND sys.SessionId = 'ses-1'", True),
        ("sys.ReplyToSessionId IS NULL", True),
        # What compares with nothing is neither true nor false, nor is its opposite.
        ("nothing = 1", False),
        ("NOT nothing = 1", False),
        ("nothing <> 1", False),
        ("nothing = 1 OR color = 'red'", True),
        ("NOT (nothing = 1 AND color = 'blue')", True),
        ("nothing IN (1, 2)", False),
        ("nothing NOT LIKE 'x'", False),
    ],
)
def test_sql(parcel: Envelope, expression: str, let_through: bool) -> None:
    assert Rule.sql(expression).lets_through(parcel) is let_through


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "color",
        "color =",
        "= 1",
        "size + 1 = 8",
        "size = @size",
        "newid() = 1",
        "(size = 7",
        "size IN 7",
        "size = 7 x",
    ],
)
def test_sql_that_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(Refusal, match="does not understand the SQL"):
        Rule.sql(expression)


@pytest.mark.parametrize(
    ("fields", "properties", "let_through"),
    [
        ({"label": "orders"}, {}, True),
        ({"label": "orders", "to": "rome"}, {}, False),
        ({"correlation_id": "cor-1", "message_id": "id-1", "session_id": "ses-1"}, {"size": 7, "color": "red"}, True),
        ({"content_type": "text/plain", "reply_to": "answers", "to": "paris"}, {}, True),
        ({"reply_to_session_id": "x"}, {}, False),
        ({}, {"color": "blue"}, False),
        ({}, {"nothing": "x"}, False),
    ],
)
def test_correlation(parcel: Envelope, fields: dict[str, Any], properties: dict[str, Any], let_through: bool) -> None:
    assert Rule.correlation(fields, properties).lets_through(parcel) is let_through


def test_a_correlation_that_asks_for_nothing_is_refused() -> None:
    with pytest.raises(Refusal, match="asks for something"):
        Rule.correlation({"label": None}, {})


@pytest.mark.parametrize(
    "rule",
    [
        ALL,
        NONE,
        Rule.sql("color = 'red' AND size < 5"),
        Rule.correlation({"label": "orders", "session_id": "1"}, {"s": "x", "i": 7, "l": 2**40, "f": 1.5, "b": True}),
    ],
    ids=lambda rule: rule.kind,
)
def test_a_rule_comes_back_as_it_was_written(rule: Rule) -> None:
    assert rule_forms.from_xml(rule_forms.to_xml("name", rule)) == rule
    assert Rule.from_record(rule.to_record()) == rule
