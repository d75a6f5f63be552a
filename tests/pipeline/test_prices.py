"""The price sheet: what it says about money, and what is said about a wrong one."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.pipeline.costs import prices
from kombu_paired.pipeline.costs.prices import PriceSheet, PriceSheetError, Tier

EXAMPLE = Path(__file__).parents[2] / "examples" / "prices" / "servicebus-standard.toml"
HEAD = {
    "name": "Standard",
    "date": datetime.date(2026, 1, 1),
    "source": "a list",
    "currency": "USD",
}
MILLION = 1_000_000


@st.composite
def sheets(draw):
    floor, tiers = draw(st.integers(0, 10**9)), []
    included = floor
    for _ in range(draw(st.integers(0, 4))):
        floor += draw(st.integers(1, 10**9))
        tiers.append(Tier(floor, draw(st.floats(0, 100))))
    tiers.append(Tier(None, draw(st.floats(0, 100))))
    return PriceSheet("x", datetime.date(2026, 1, 1), "x", "USD", draw(st.floats(0, 1000)), included, tuple(tiers))


operations = st.integers(0, 10**10)


# -- money ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "money"),
    [
        (0, 9.81),
        (13 * MILLION, 9.81),
        (14 * MILLION, 9.81 + 0.80),
        (100 * MILLION, 9.81 + 87 * 0.80),
        (101 * MILLION, 9.81 + 87 * 0.80 + 0.50),
        (2_500 * MILLION, 9.81 + 87 * 0.80 + 2_400 * 0.50),
        (2_510 * MILLION, 9.81 + 87 * 0.80 + 2_400 * 0.50 + 10 * 0.20),
    ],
)
def test_the_example_sheet_prices_a_month_as_the_list_does(count, money):
    assert prices.read(EXAMPLE).of_month(count) == pytest.approx(money)


def test_the_example_sheet_says_where_it_comes_from():
    sheet = prices.read(EXAMPLE)
    assert (sheet.currency, sheet.source) == ("USD", "list price, USD, check yours")
    assert isinstance(sheet.date, datetime.date)


@given(sheets(), operations, operations)
def test_more_operations_never_cost_less(sheet, some, more):
    assert sheet.of_month(some) <= sheet.of_month(some + more) + 1e-9


@given(sheets(), operations)
def test_what_is_included_costs_the_base_fee_and_no_price_exceeds_the_dearest_tier(sheet, count):
    assert sheet.of_month(min(count, sheet.included_operations)) == sheet.base_fee
    paid = max(0, count - sheet.included_operations) / MILLION
    dearest = max(tier.per_million for tier in sheet.tiers)
    cheapest = min(tier.per_million for tier in sheet.tiers)
    assert paid * cheapest <= sheet.of_operations(count) * (1 + 1e-9) + 1e-9
    assert sheet.of_operations(count) <= paid * dearest * (1 + 1e-9) + 1e-9


def test_a_sheet_without_tiers_is_a_flat_rate():
    sheet = prices.parse({**HEAD, "base_fee": 677.08})
    assert sheet.of_month(0) == sheet.of_month(10**12) == 677.08


# -- what is wrong ----------------------------------------------------------------------------------------------------


def tier(**keys):
    return {"tiers": [keys]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": None}, "name is missing"),
        ({"date": None}, "date is missing; it says how far the prices can be trusted"),
        ({"source": None}, "source is missing"),
        ({"currency": None}, "currency is missing"),
        ({"name": " "}, "name must be a text"),
        ({"currency": 3}, "currency must be a text, not 3"),
        ({"date": "2026-01-01"}, "date must be a date without quotes"),
        ({"date": datetime.datetime(2026, 1, 1)}, "date must be a date"),
        ({"base_fe": 1}, "unknown key base_fe; did you mean base_fee?"),
        ({"zzz": 1}, "unknown key zzz; known are name"),
        ({"base_fee": -1}, "base_fee must be a number, not negative, not -1"),
        ({"base_fee": True}, "base_fee must be a number"),
        ({"base_fee": float("nan")}, "base_fee must be a number"),
        ({"base_fee": "9.81"}, "base_fee must be a number"),
        ({"included_operations": 1.5}, "included_operations must be a whole number"),
        ({"tiers": 3}, r"tiers must be tables, each under a line \[\[tiers\]\]"),
        ({"tiers": [3]}, "tiers must be tables"),
        (tier(), "tier 1: per_million is missing"),
        (tier(per_million=-1), "tier 1: per_million must be a number"),
        (tier(per_million=1, up_to=10), "the last tier, and only the last, goes without up_to"),
        ({"tiers": [{"per_million": 1}, {"per_million": 1}]}, "tier 1: the last tier, and only the last"),
        ({"tiers": [{"per_million": 1, "up_to": 0}, {"per_million": 1}]}, "tier 1: up_to = 0 is not above 0"),
        (
            {"included_operations": 100, "tiers": [{"per_million": 1, "up_to": 50}, {"per_million": 1}]},
            "up_to = 50 is not above 100, where the tier begins",
        ),
        (tier(per_milion=1), "tier 1: unknown key per_milion; did you mean per_million?"),
    ],
)
def test_a_wrong_sheet_is_refused_with_what_is_wrong(change, said):
    document = {key: value for key, value in {**HEAD, **change}.items() if value is not None}
    with pytest.raises(PriceSheetError, match=said) as caught:
        prices.parse(document, "mine.toml")
    assert str(caught.value).startswith("mine.toml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name = ", "is not TOML"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"", "name is missing"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_sheet_is_refused_by_its_name(tmp_path, content, said):
    path = tmp_path / "prices.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PriceSheetError, match=said) as caught:
        prices.read(path)
    assert str(path) in str(caught.value)


def test_a_folder_is_no_sheet(tmp_path):
    with pytest.raises(PriceSheetError, match="directory"):
        prices.read(tmp_path)
