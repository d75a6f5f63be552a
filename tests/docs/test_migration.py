"""The pages on coming from elsewhere name settings that there are, with the defaults that they have."""

from __future__ import annotations

import re
from dataclasses import fields

from kombu_paired.brokers.servicebus.settings import STOCK, ServiceBusSettings
from kombu_paired.options import PairedNamespaceOptions
from tests.docs.reading import DOCS, code, section, table

DEFAULTS = {each.name: each.default for each in fields(PairedNamespaceOptions)}


def test_the_defaults_beside_those_of_dotnet_are_those_of_the_code():
    rows = table(section(DOCS / "from-dotnet.md", "Which is which"))
    found = (re.search(r"\[`(\w+)`\]\([^)]+\), (\d+)", row["here"]) for row in rows)
    written = {each[1]: float(each[2]) for each in found if each}
    assert len(written) == 5
    assert written == {name: DEFAULTS[name] for name in written}


def test_each_option_of_the_stock_transport_that_is_named_is_accepted():
    rows = table(section(DOCS / "from-stock-servicebus.md", "What to change"))
    named = {name for row in rows for name in code(row["you had"]) if "://" not in name}
    kept = {name for row in rows if row["now"] == "in `primary_options`" for name in code(row["you had"])}
    assert kept <= {each.name for each in fields(ServiceBusSettings)}
    assert len(named - kept) == 5
    assert named - kept <= STOCK
