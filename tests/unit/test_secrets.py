"""No text that the product, Kombu or Celery prints shows a secret of either side, whatever it is made of."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress
from urllib.parse import quote, quote_plus, urlsplit

import pytest
from celery import Celery
from celery.app import utils
from celery.worker.consumer.connection import Connection as ConnectionStep
from celery.worker.control import conf as inspect_conf
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kombu import Connection
from kombu.utils.objects import cached_property

import kombu_paired
from kombu_paired.brokers.drivers import default_primary_name
from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.cli import main
from kombu_paired.connection_strings import as_url
from kombu_paired.errors import NamespaceFailure
from kombu_paired.events import Event, EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.journal import line_of
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.secrets import NO_SECRETS, Secrets, shown_options, without_secrets, without_secrets_in_urls

pieces = st.text("/+=@:?#[]%&;, \\'\"{}é\n\t~`!$^*()<>|", max_size=3) | st.text(max_size=3)
#: Each piece between two breaks can be told from everything else.
passwords = st.builds(lambda *parts: "hushhush".join(["", *parts, ""]), pieces, pieces).filter(
    lambda password: ";hushhush://" not in password  # Kombu, too, takes this for the beginning of another broker's URL
)
forms = st.sampled_from(
    [
        "amqp://user:{}@main//",
        "redis://:{}@main:6379/0",
        "rediss://:{}@main:6379/0",
        "sentinel://:{}@main:26379",
        "amqps://user:{}@main:5671/shop",
        "azureservicebus://RootManage:{}@main.servicebus.windows.net",
        "sqla+postgresql://user:{}@main/shop",
        "redis://main:6379/0?password={}",
        "amqp://user:{0}@one//;paired+amqp://user:{0}@two//",
    ]
)
#: How a user may write it.
writings = st.sampled_from([str, lambda password: quote(password, safe=""), quote, quote_plus])


def shows(text):
    return "hush" in text.lower()


def app_of(url, spare, **options):
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.broker_transport_options = {"secondary": spare, **options}
    return app


def texts_of_a_connection(connection):
    """What people and programs print of it."""
    yield connection.as_uri()
    yield connection.as_uri(mask="***")
    yield repr(connection)
    yield str(connection)
    yield connection.host
    yield repr(connection.info())
    yield json.dumps(connection.info(), default=repr)


def texts_of_errors(connection):
    """What is said when it is used: it is refused, or there is a pairing with a name."""
    try:
        yield str(connection.transport.implements)
        pairing = kombu_paired.pairing_of(connection)
    except Exception as exc:
        yield f"{exc} {exc!r}"
        return
    yield repr(pairing)
    yield f"{pairing.primary.label} {pairing.secondary.label} {pairing.backlog_queue_names}"


@settings(max_examples=100, deadline=None)
@given(passwords, forms, writings)
@example("hushhush/hushhush+hushhush=", "azureservicebus://RootManage:{}@main", str)
@example("hushhush;hushhush", "redis://:{}@main:6379/0", str)
@example("hushhush;hushhush@x", "amqp://user:{}@main//", str)
@example("12/hushhush;hushhush", "amqp://user:{}@main//", str)
@example("12/hushhush", "amqp://user:{}@main//", str)
@example("12?hushhush", "sqla+postgresql://user:{}@main/shop", str)
@example("hushhush/x@hushhush", "sqla+postgresql://user:{}@main/shop", str)
@example("hushhush@hushhush?hushhush", "redis://:{}@main:6379/0", str)
@example("hushhush@hushhush#hushhush", "amqp://user:{}@main//", str)
@example("hushhush/hushhush?hushhush", "amqp://user:{}@main//", str)
@example("hushhush@hushhush/hushhush?hushhush", "amqp://user:{}@main//", str)
def test_nothing_printed_of_a_connection_shows_a_password(password, form, write):
    url = form.format(write(password))
    spare = f"redis://:{write(password)}@spare:6379/0"
    options = {
        "secondary": spare,
        "primary_options": {"password": password, "sentinel_kwargs": {"password": password}},
        "secondary_options": {"client_options": {"anything": password, "more": [password, spare]}},
    }
    with suppress(ValueError):  # Kombu's own, of a list of URLs one of which cannot be split
        connection = Connection("paired+" + url, transport_options=options)
        assert not [text for text in texts_of_a_connection(connection) if shows(text)]
        assert not [text for text in texts_of_errors(connection) if shows(text)]
    assert not shows(default_primary_name(url.removeprefix("paired+")))
    assert not shows(repr(PairedNamespaceOptions(secondary=url)))


SIGNED = "SharedAccessSignature sr=sb%3A%2F%2Fmain&se=1900000000&skn=Root&sig={}"
#: A ``;`` would end it.
keys = passwords.filter(lambda password: ";" not in password)
connection_strings = st.sampled_from(
    [
        "Endpoint=sb://main.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={}",
        "Endpoint=sb://main.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={};EntityPath=orders",
        f"Endpoint=sb://main.servicebus.windows.net/;SharedAccessSignature={SIGNED}",
        "SharedAccessKey={};Endpoint=sb://main.servicebus.windows.net/;SharedAccessKeyName=Root",
    ]
)


@settings(max_examples=100, deadline=None)
@given(keys, connection_strings)
@example("hushhush/x+hushhush=", "Endpoint=sb://main;SharedAccessKeyName=Root;SharedAccessKey={}")
def test_nothing_printed_shows_a_connection_string(password, form):
    string = form.format(quote(password, safe="") if "sig=" in form else password)
    options = {"secondary": string.replace("main", "spare"), "primary_options": {"credential": SIGNED.format(password)}}
    for url in ("azureservicebus://" + quote(string, safe=""), "azureservicebus://" + string):
        with suppress(ValueError):
            connection = Connection("paired+" + url, transport_options=options)
            assert not [text for text in texts_of_a_connection(connection) if shows(text)]
            assert not [text for text in texts_of_errors(connection) if shows(text)]
        app = app_of("paired+" + url, options["secondary"], primary_options=options["primary_options"])
        assert not shows(without_secrets(url))
        with suppress(ValueError):
            assert not shows(app.conf.humanize())
            assert not shows(default_primary_name(url))
    assert not shows(repr(PairedNamespaceOptions(secondary=string)))


@given(keys, connection_strings)
def test_a_connection_string_is_taken_out_of_what_a_driver_says(password, form):
    string = form.format(quote(password, safe="") if "sig=" in form else password)
    secrets = Secrets.of([as_url(string)])
    for text in (string, as_url(string), f"bad: {string!r}", json.dumps({"given": string}), f"the key {password}"):
        assert not shows(secrets.hide(text)), text


def test_the_host_of_a_connection_string_is_shown():
    url = as_url("Endpoint=sb://main.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=hushhush=")
    assert without_secrets("paired+" + url) == "paired+azureservicebus://**@main.servicebus.windows.net"


def test_a_signature_in_a_text_is_masked_without_knowing_it():
    shown = without_secrets_in_urls("refused: Endpoint=sb://main/;SharedAccessSignature=" + SIGNED.format("hush%3D"))
    assert "refused" in shown
    assert not shows(shown)


@settings(max_examples=40, deadline=None)
@given(passwords, writings)
def test_nothing_that_celery_prints_shows_a_password(password, write):
    url = f"paired+redis://:{write(password)}@main:6379/0".replace(";", "%3B")
    spare = f"amqp://user:{write(password)}@spare//".replace(";", "%3B")
    sides = {each: {"password": password, "x": password, "urls": [spare]} for each in ("primary_options",)}
    app = app_of(url, spare, **sides)
    worker = type("Worker", (), {"app": app})
    assert not shows(app.bugreport())
    assert not shows(app.conf.humanize())
    assert not shows(json.dumps(inspect_conf(worker)))
    assert not shows(json.dumps(inspect_conf(worker, with_defaults=True)))
    assert not shows(str(utils.filter_hidden_settings({"CELERY_BROKER_URL": url})))


def test_celery_shows_the_rest():
    report = app_of("paired+redis://:hush@main:6379/0", "amqp://user:hush@spare//", send_timeout=3).bugreport()
    assert "broker_url: 'paired+redis://:********@main:6379/0'" in report
    assert "'secondary': 'amqp://user:********@spare//'" in report
    assert "'send_timeout': 3" in report
    assert "transport:paired" in report


def test_inspect_stats_shows_no_password():
    app = app_of("paired+redis://:hush@main:6379/0", "amqp://user:hush@spare//", primary_options={"username": "hush"})
    consumer = type("Consumer", (), {"connection": app.connection_for_read()})
    stats = ConnectionStep.info(None, consumer)["broker"]
    assert not shows(json.dumps(stats))
    assert stats["hostname"] == "paired+redis://:**@main:6379/0"
    assert stats["transport_options"]["secondary"] == "amqp://user:**@spare//"


@pytest.mark.parametrize(
    "transport", [kombu_paired.Transport, "kombu_paired.transport:Transport", "kombu_paired.transport.Transport"]
)
def test_a_plain_url_with_our_transport_is_shown_without_its_password_however_that_is_named(transport):
    options = {"secondary": "amqp://user:hush@spare//"}
    connection = Connection("redis://:hush@main:6379/0", transport=transport, transport_options=options)
    assert connection.host == "main:6379"
    assert not shows(str(connection.info()))


def test_kombu_still_clones_and_pickles_the_whole_connection():
    url = "paired+amqp://user:hush@one//;paired+amqp://user:hush@two//"
    options = {"secondary": "redis://:hush@spare", "primary_options": {"password": "hush"}}
    first = Connection(url, transport_options=options)
    assert not shows(str(first.info()))
    for other in (first.clone(), pickle.loads(pickle.dumps(first)), Connection(url, transport_options=options)):
        assert other.as_uri(include_password=True) == "paired+amqp://user:hush@one//"
        assert other.alt == first.alt
        assert other.transport_options == options
        assert other.transport.settings.key == first.transport.settings.key
        assert other == first or other.__eqhash__() == first.__eqhash__()


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("redis://:pw@main:6379/0", "main:6379"),
        ("amqp://user:pw@main//", "main:None"),  # as Kombu's own
        ("azureservicebus://Root:a/b+c=@main", "azureservicebus://Root:**@main"),
        ("azureservicebus://Root:12/b+c=@main", "azureservicebus://Root:**@main"),
    ],
)
def test_the_host_of_a_connection_is_that_of_the_primary(url, host):
    assert Connection(f"paired+{url}").host == host


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://shop:s3cret@main.example:7777/1", "amqp://shop:**@main.example:7777/1"),
        ("redis://shop:s3cret@main.example:7777/1", "redis://shop:**@main.example:7777/1"),
        ("azureservicebus://shop:s3cret@main.example", "azureservicebus://shop:**@main.example"),
    ],
)
def test_all_that_is_shown_of_a_pairing_says_where_it_is(url, shown):
    connection = Connection(f"paired+{url}", transport_options={"secondary": url.replace("main", "spare")})
    pairing = kombu_paired.pairing_of(connection)
    assert connection.as_uri() == f"paired+{shown}"
    assert connection.as_uri(include_password=True) == f"paired+{url}"
    assert pairing.primary.label == f"primary namespace {shown}"
    assert pairing.secondary.label == f"secondary namespace {shown.replace('main', 'spare')}"
    assert not [text for text in texts_of_a_connection(connection) if "s3cret" in text]
    assert "s3cret" not in f"{pairing!r} {pairing.options!r}"
    pairing.close()


def test_what_a_plain_connection_shows_is_left_as_it_is():
    plain = Connection("redis://:pw@main:6379/0", transport_options={"secondary": "redis://:pw@x"})
    assert plain.host == "main:6379"
    assert plain.info()["password"] == "pw"
    assert plain.info()["transport_options"] == {"secondary": "redis://:pw@x"}
    assert pickle.loads(pickle.dumps(plain)).password == "pw"


def test_the_names_of_kombus_and_celerys_that_are_used_are_there():
    assert isinstance(vars(Connection)["host"], property | cached_property)
    for name in ("info", "_info", "create_transport", "__reduce__"):
        assert callable(getattr(Connection, name))
    assert callable(utils.filter_hidden_settings)


# -- texts of others --------------------------------------------------------------------------------------------------


def errors_about(url, password):
    """What drivers put into their errors."""
    yield ValueError(f"invalid literal for int() with base 10: {password!r}")
    yield OSError(111, f"cannot reach {url}")
    yield LookupError("no such thing", {"url": url}, url.encode())
    try:
        int(urlsplit(url).port or password)
    except ValueError as exc:
        yield exc
    try:
        ("x" * 70 + password).encode("idna")
    except UnicodeError as exc:
        yield exc


@settings(max_examples=60, deadline=None)
@given(passwords, st.sampled_from(["redis://:{}@main:6379/0", "sqla+mysql://u:{}@main/x"]), writings)
@example("hushhushé", "redis://:{}@main:6379/0", str)
def test_no_failure_shows_what_a_driver_put_into_its_error(password, form, write):
    url = form.format(write(password)).replace(";", "%3B")
    namespace = KombuNamespace("primary", [url], {}, send_timeout=1)
    for error in errors_about(url, write(password)):
        outer = RuntimeError("around it")
        outer.__cause__ = error
        failure = namespace.failure(outer if "hush" in str(error) else error)
        assert not shows(f"{failure} {failure!r} {failure.cause} {failure.cause!r} {failure.detail}")
        if "hush" not in repr(error) and not error.args:
            continue
        assert "hush" not in f"{error}"
        event = Event(EventKind.SEND_FAILED, 1.0, "main", detail=str(namespace.failure(error)))
        assert not shows(line_of(event, "host", 1, 1))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach redis://:pw@main:6379/0: refused", "cannot reach redis://:**@main:6379/0: refused"),
        ("(see amqp://main-broker:5672//)", "(see amqp://main-broker:5672//)"),
        ("'redis://main', 'redis://:a@b'", "'redis://main', 'redis://:**@b'"),
        ("nothing", "nothing"),
    ],
)
def test_of_a_text_the_rest_is_shown(text, shown):
    assert without_secrets_in_urls(text) == shown


def test_a_secret_that_is_no_url_is_known_by_its_name():
    options = {
        "sentinel_kwargs": {"password": "mellon-mellon"},
        "global_keyprefix": "shop-shop",
        "ssl_keyfile": "/k.pem",
    }
    secrets = Secrets.of(["redis://main"], options)
    text = "AUTH mellon-mellon failed for shop-shop and /k.pem"
    assert secrets.hide(text) == "AUTH ** failed for shop-shop and /k.pem"
    assert NO_SECRETS.hide("Endpoint=sb://x/;SharedAccessKey=abc+/=;EntityPath=q").count("abc") == 0
    assert "mellon" not in repr(secrets)


def test_a_short_password_is_not_searched_for_in_every_word():
    assert Secrets.of(["redis://:a@main"]).hide("a cat sat") == "a cat sat"


def test_options_of_a_side_are_shown_by_name_and_number():
    shown = shown_options(
        {
            "secondary": "redis://:pw@spare",
            "send_timeout": 3,
            "primary_options": {"visibility_timeout": 60, "ssl": True, "password": 1234, "client_name": "shop"},
        }
    )
    assert shown == {
        "secondary": "redis://:**@spare",
        "send_timeout": 3,
        "primary_options": {"visibility_timeout": 60, "ssl": True, "password": "**", "client_name": "**"},
    }


def test_an_error_text_is_made_once_and_shows_the_driver():
    failure = NamespaceFailure(FailureKind.FAULT, "primary namespace redis://main", OSError("broken"))
    assert failure.detail == "OSError: broken"
    assert str(failure).endswith(failure.detail)


# -- the command line -------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(passwords, writings)
def test_the_command_line_shows_no_password(password, write):
    arguments = [
        "check",
        "--primary",
        f"redis://:{write(password)}@127.0.0.1:1/0",
        "--secondary",
        f"redis://:{write(password)}@127.0.0.1:2/0",
        "--option",
        f"primary_options={json.dumps({'sentinel_kwargs': {'password': password}})}",
        "--option",
        "send_timeout=0.2",
    ]
    for more in ([], ["--json"], ["-vv"]):
        result = CliRunner().invoke(main, [*arguments, *more])
        assert not shows(result.output)
