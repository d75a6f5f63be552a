"""The documentation says what the code does: its code runs, its links resolve, its tables are those of the code."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from celery.utils.dispatch import Signal

from kombu_paired import errors, message, testing
from kombu_paired.brokers import generic
from kombu_paired.brokers.drivers import DRIVERS, default_primary_name
from kombu_paired.brokers.rabbitmq import kinds as rabbitmq
from kombu_paired.brokers.redis import kinds as redis
from kombu_paired.brokers.servicebus import kinds, settings
from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.brokers.servicebus.entities import BACKLOG_PROPERTIES
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings
from kombu_paired.brokers.spool import kinds as spool
from kombu_paired.contrib import celery as contrib
from kombu_paired.emulator.broker import faults
from kombu_paired.emulator.server import command
from kombu_paired.errors import ConfigurationError
from kombu_paired.failures import FailureKind
from kombu_paired.options import PairedNamespaceOptions
from tests.battle import judge, plan, rules
from tests.conftest import BrokerPool
from tests.docs.reading import DOCS, FILES, ROOT, Block, all_blocks, anchors, blocks, code, links, section, table

PYTHON = all_blocks("python")
YES = {"yes": True, "no": False}

#: After a block that makes an application: its settings are right, and its pairing opens.
OPEN = """
with app.connection_for_write() as connection:
    connection.ensure_connection(max_retries=1)
    assert kombu_paired.pairing_of(connection).backlog_queue_count == 10
"""


# -- code and links ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles(block: Block):
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", [block for block in PYTHON if block.runs], ids=str)
def test_python_runs(block: Block, broker_pool: BrokerPool, tmp_path: Path):
    main, spare = broker_pool.pair(block.kind)
    script = tmp_path / "block.py"
    epilogue = OPEN if "app = Celery(" in block.text else ""
    text = block.with_brokers(main.url, spare.url).replace("spool:///var/lib/shop", f"spool://{tmp_path}")
    script.write_text(text + epilogue)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_some_code_runs():
    assert {"README.md", "operations.md", "failure-kinds.md", "servicebus.md", "emulator.md"} <= {
        block.path.name for block in PYTHON if block.runs
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(path: Path):
    broken = []
    for target in links(path):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_every_page_is_reachable_from_the_readme():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in seen or path.suffix != ".md":
            continue
        seen.add(path)
        targets = (target.partition("#")[0] for target in links(path) if "://" not in target)
        waiting.extend((path.parent / target).resolve() for target in targets if target)
    assert set(FILES) <= seen


def test_the_readme_has_the_two_commands():
    shell = "\n".join(block.text for block in blocks(ROOT / "README.md") if block.language == "sh")
    assert "python3 -m venv .venv && .venv/bin/pip install -e '.[demo]' && .venv/bin/kombu-paired demo" in shell
    assert "tests/run" in shell


# -- settings ---------------------------------------------------------------------------------------------------------


SETTINGS = DOCS / "settings.md"
OPTIONS = {each.name: each for each in fields(PairedNamespaceOptions)}


def described_options() -> list[str]:
    return re.findall(r"^### `(\w+)` *$", SETTINGS.read_text(), re.M)


def fact(name: str, label: str) -> str:
    """What follows ``Default:`` or ``Bounds:`` in the section of an option."""
    found = re.search(rf"{label}: (.+?)\. *$", section(SETTINGS, f"`{name}`"), re.M)
    assert found, f"{name} has no line '{label}: … .'"
    return found[1]


def test_settings_names_exactly_the_options():
    assert sorted(described_options()) == sorted(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_settings_has_the_true_default(name: str):
    option = OPTIONS[name]
    written = fact(name, "Default")
    if option.default is MISSING and option.default_factory is MISSING:
        assert written.startswith("none, required")
        return
    default = option.default if option.default is not MISSING else option.default_factory()
    assert ast.literal_eval(code(written)[0]) == default


@pytest.mark.parametrize("name", OPTIONS)
def test_settings_has_the_true_bounds(name: str):
    given: dict[str, Any] = {"secondary": "amqp://spare-broker//"}
    with pytest.raises(ConfigurationError) as caught:
        PairedNamespaceOptions.parse(given | {name: object()})
    assert fact(name, "Bounds").replace("`", "'") in str(caught.value)


def test_settings_table_of_the_short_list_is_complete():
    rows = table(section(SETTINGS, "All of them"))
    assert [name for row in rows for name in code(row["option"])] == described_options()


# -- brokers ----------------------------------------------------------------------------------------------------------


def test_brokers_agree_with_the_drivers():
    written = {}
    for row in table(section(DOCS / "brokers.md", "What each can do")):
        limit = row["largest message"]
        for scheme in code(row["URL begins with"]):
            written[scheme.removesuffix("://")] = {
                "confirmed": YES[row["confirms a send"]],
                "routed": YES[row["notices a message without a queue"]],
                "keeps_unsettled": YES[row["may be a secondary"]],
                "stands_in": YES[row["workers may stand in there"]],
                "outlives_restart": YES[row["keeps messages when it is killed"].split(",")[0]],
                "tested": YES[row["tested"]],
                "max_message_size": int(limit.split()[0].replace(",", "")) if limit[0].isdigit() else None,
            }
    actual = {
        scheme: {name: getattr(driver, name) for name in next(iter(written.values()))}
        for scheme, driver in DRIVERS.items()
    }
    assert written == actual


# -- failure kinds ----------------------------------------------------------------------------------------------------


KINDS = DOCS / "failure-kinds.md"


def test_failure_kinds_agree_with_the_code():
    rows = table(section(KINDS, "The seven kinds"))
    written = {code(row["kind"])[0]: (YES[row["counts towards failover"]], row["this message"]) for row in rows}
    assert set(written) == {kind.name for kind in FailureKind}
    for kind in FailureKind:
        counts, becomes = written[kind.name]
        word = {"divert": "diverted", "wait": "waits", "declare": "declared", "raise": "raised"}[kind.response.value]
        assert (kind.counts, word in becomes) == (counts, True), kind


@pytest.mark.parametrize(
    ("title", "actual"),
    [
        ("RabbitMQ", {str(number): kind for number, kind in rabbitmq._CODES.items()}),
        ("Redis", redis._WORDS),
        ("Spool", {**spool._CODES, **spool._ERRORS, **{error.__name__: kind for error, kind in spool._OURS.items()}}),
        ("SQS", generic._AWS_CODES),
        ("Azure Service Bus", {error.__name__: kind for error, kind in kinds._KINDS}),
    ],
)
def test_failure_kinds_of_each_driver(title: str, actual: dict[str, FailureKind]):
    written: dict[str, FailureKind] = {}
    for row in table(section(KINDS, title)):
        for answer in code(row["answer"]):
            assert answer not in written, f"{answer} stands there twice"
            written[answer] = FailureKind[code(row["kind"])[0]]
    assert written == dict(actual)


# -- Service Bus ------------------------------------------------------------------------------------------------------


SERVICEBUS = DOCS / "servicebus.md"


def test_the_options_of_the_service_bus_transport_are_those_of_the_code():
    defaults = {each.name: getattr(ServiceBusSettings(), each.name) for each in fields(ServiceBusSettings)}
    rows = table(section(SERVICEBUS, "Options of the transport"))
    assert [code(row["option"])[0] for row in rows] == list(defaults)
    for row in rows:
        for written in code(row["default"]):
            assert ast.literal_eval(written) == defaults[code(row["option"])[0]]
        if row["default"].isdecimal():
            assert int(row["default"]) == defaults[code(row["option"])[0]]


def test_the_client_options_of_service_bus_are_those_of_the_code():
    rows = table(section(SERVICEBUS, "Proxies, web sockets, and other ways there"))
    assert {name for row in rows for name in code(row["in `client_options`"])} == set(settings._CLIENT_PARSERS)


def test_the_properties_of_backlog_queues_are_those_of_the_code():
    rows = table(section(SERVICEBUS, "Rights").split("never changed.")[1])
    written = {name: row["value"] for row in rows for name in code(row["property"])}
    unlimited = {name for name, value in written.items() if value.startswith("not set")}
    assert unlimited == {"default_message_time_to_live", "auto_delete_on_idle"}
    said = {name: _as_written(value) for name, value in BACKLOG_PROPERTIES.items()}
    assert {name: value for name, value in written.items() if name not in unlimited} == said


def _as_written(value: object) -> str:
    return "1 minute" if value == timedelta(minutes=1) else str(value).lower()


def test_the_urls_of_service_bus_are_read():
    rows = table(section(SERVICEBUS, "Connection strings"))
    addresses = {row["you have"]: Address.parse(code(row["write"])[0]) for row in rows}
    assert len(addresses) == 9
    assert {each.host for each in addresses.values() if not each.is_local} == {"contoso.servicebus.windows.net"}
    assert [each.place for each in addresses.values() if each.is_local] == ["localhost:5672", "emulator:5672"]
    assert sum(each.identity is not None for each in addresses.values()) == 3
    assert {each.key for each in addresses.values() if each.policy} == {"KEY"}


EMULATOR = DOCS / "emulator.md"


def test_the_options_of_the_emulator_are_those_of_its_command():
    rows = table(section(EMULATOR, "Options"))
    written = {word for row in rows for text in code(row["option"]) for word in text.split() if word.startswith("--")}
    options = {name for parameter in command.emulator.params for name in parameter.opts if name.startswith("--")}
    assert written == options


def test_the_faults_of_the_emulator_are_those_of_the_code():
    rows = table(section(EMULATOR, "Faults"))
    assert {name for row in rows for name in code(row["kind"])} == set(faults.KINDS)
    operations = re.findall(r"`(\w+)`", section(EMULATOR, "Faults").rpartition("operations: ")[2].partition(".")[0])
    assert operations == list(faults.OPERATIONS)


def test_the_example_names_the_backlog_queues_as_a_pairing_does():
    folder = ROOT / "examples" / "servicebus_emulator"
    [namespace] = json.loads((folder / "secondary.json").read_text())["UserConfig"]["Namespaces"]
    name = default_primary_name("azureservicebus://RootManageSharedAccessKey:SAS_KEY_VALUE@localhost:5672")
    assert [each["Name"] for each in namespace["Queues"]] == [f"{name}{message.BACKLOG_MARK}{i}" for i in range(2)]


# -- operations -------------------------------------------------------------------------------------------------------


OPERATIONS = DOCS / "operations.md"


def texts_of_the_package() -> list[str]:
    """Every string in the code, with ``<>`` where a value goes."""
    texts = []
    for path in (ROOT / "kombu_paired").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(re.sub(r"\(?%[sdrg]\)?", "<>", node.value))
    return texts


def test_log_lines_are_those_of_the_code():
    texts = texts_of_the_package()
    rows = table(section(OPERATIONS, "In the log"))
    unknown = []
    for row in rows:
        [line] = code(row["line"])
        pattern = ".*".join(re.escape(piece) for piece in re.split(r"\(?<[^>]*>\)?|…", line) if piece.strip())
        if not any(re.search(pattern, text) for text in texts):
            unknown.append(line)
    assert len(rows) > 8
    assert unknown == []


def test_signals_are_those_of_the_code():
    rows = table(section(OPERATIONS, "Signals"))
    signals = {name for name, value in vars(contrib).items() if isinstance(value, Signal)}
    assert {code(row["signal"])[0] for row in rows} == signals


def test_errors_are_those_of_the_code():
    rows = table(section(OPERATIONS, "What a caller may see"))
    written = {code(row["error"])[0] for row in rows}
    raised = {each.__name__ for each in vars(errors).values() if isinstance(each, type) and is_leaf(each)}
    assert written == raised


def is_leaf(error: type) -> bool:
    return issubclass(error, errors.SendError) and error is not errors.SendError


# -- the message in the backlog ---------------------------------------------------------------------------------------


def test_headers_are_those_of_the_code():
    rows = table(section(DOCS / "how-it-works.md", "The message in the backlog"))
    written = {header for row in rows for header in code(row["header"])}
    names = {name for name, value in vars(message).items() if name.isupper() and isinstance(value, str)}
    actual = {getattr(message, name) for name in names} | set(message.ALIASES.values())
    assert written - {message.KEPT + "…"} == actual - {message.KEPT, message.BACKLOG_MARK}


def test_no_word_for_a_thing_that_has_another():
    """One word per thing: docs/architecture.md, the words."""
    wrong = defaultdict(list)
    for path in FILES:
        for word in ("transfer queue", "fallback", "failback", "standby", "circuit breaker", "backup broker"):
            if word in path.read_text().lower():
                wrong[path.name].append(word)
    assert wrong == {}


# -- the battle -------------------------------------------------------------------------------------------------------


def test_the_battle_is_the_one_of_the_documents():
    page = DOCS / "testing.md"
    promises = {code(row["promise"])[0] for row in table(section(page, "What is promised"))}
    explanations = {code(row["rule"])[0] for row in table(section(page, "What explains a duplicate"))}
    pairs = {name for name in code(section(page, "What happens")) if "+" in name}
    assert promises == set(re.findall(r'Broken\("(\w+)"', Path(judge.__file__).read_text()))
    assert explanations == {rule.__name__ for rule in rules.RULES}
    assert pairs == set(plan.PAIRS)


# -- brokers for the tests of others ----------------------------------------------------------------------------------


def test_the_local_brokers_are_those_of_the_code():
    text = (DOCS / "testing.md").read_text().partition("## Outages in your own tests")[2]
    kinds, methods = text.partition("| method |")[0], text[text.index("| method |") :]
    assert {code(row["kind"])[0] for row in table(kinds)} == set(get_args(testing.Kind))
    documented = {name for row in table(methods) for name in code(row["method"])}
    public = {name for name, each in vars(testing.LocalBroker).items() if callable(each) and not name.startswith("_")}
    assert documented == public
    assert {"local_broker", "local_broker_missing", "BrokerMissing", "BrokerFailed", "spawn"} <= set(testing.__all__)
