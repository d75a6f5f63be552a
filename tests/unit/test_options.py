"""Every setting, its default and its bounds; names and URLs."""

from __future__ import annotations

import math
from datetime import timedelta
from urllib.parse import quote

import pytest
from celery import Celery
from hypothesis import example, given
from hypothesis import strategies as st
from kombu.exceptions import OperationalError

from kombu_paired.brokers.drivers import default_primary_name
from kombu_paired.errors import ConfigurationError
from kombu_paired.failures import FailureKind
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.secrets import without_secrets

SPARE = "amqp://spare-broker//"


def parse(**options):
    return PairedNamespaceOptions.parse({"secondary": SPARE, **options})


def refusal(**options):
    """The text of the error that these settings raise."""
    with pytest.raises(ConfigurationError) as caught:
        parse(**options)
    return str(caught.value)


# -- defaults and bounds --------------------------------------------------------------------------------------------

DEFAULTS = {
    "secondary": SPARE,
    "primary_options": {},
    "secondary_options": {},
    "primary_name": None,
    "backlog_queue_count": 10,
    "backlog_queue_type": None,
    "failover_interval": 10,
    "ping_interval": 60,
    "send_timeout": 10,
    "enable_syphon": None,
    "syphon_poll": 900,
    "syphon_rate": None,
    "divert_while_suspect": True,
    "create_backlog_queues": True,
    "throttle_wait": 10,
    "backlog_retry_interval": 60,
    "close_timeout": 5,
    "stand_in_after": None,
    "allow_unsafe_secondary": False,
    "classify_failure": None,
    "journal": None,
    "journal_level": "messages",
}

#: option: (lowest, whether the lowest itself is allowed, highest)
DURATIONS = {
    "failover_interval": (0, True, 3600),
    "ping_interval": (1, True, 1800),
    "send_timeout": (0, False, None),
    "syphon_poll": (0, False, None),
    "throttle_wait": (0, True, None),
    "backlog_retry_interval": (0, True, None),
    "close_timeout": (0, True, None),
    "stand_in_after": (0, False, None),
}
FLAGS = [name for name, default in DEFAULTS.items() if isinstance(default, bool)]
durations = pytest.mark.parametrize("option", DURATIONS)
flags = pytest.mark.parametrize("option", FLAGS)


def test_only_the_secondary_is_required_and_every_default_is_that_of_the_table():
    assert vars(parse()) == DEFAULTS


def test_options_made_without_parsing_have_the_same_defaults():
    assert PairedNamespaceOptions(SPARE) == parse()


def test_what_is_given_is_taken():
    given_options = {
        "primary_options": {"confirm_publish": True},
        "secondary_options": {"visibility_timeout": 60},
        "primary_name": "shop",
        "backlog_queue_count": 3,
        "backlog_queue_type": "quorum",
        "enable_syphon": True,
        "divert_while_suspect": False,
        "create_backlog_queues": False,
        "allow_unsafe_secondary": True,
    }
    parsed = parse(**given_options)
    assert {name: getattr(parsed, name) for name in given_options} == given_options


@durations
def test_a_duration_on_its_lower_bound_is_accepted_where_the_table_says_so(option):
    low, low_allowed, _ = DURATIONS[option]
    if low_allowed:
        assert getattr(parse(**{option: low}), option) == low
    else:
        assert option in refusal(**{option: low})


@durations
@given(data=st.data())
def test_a_duration_within_its_bounds_is_taken_as_it_is(option, data):
    low, low_allowed, high = DURATIONS[option]
    seconds = data.draw(st.floats(low, high or 1e9, exclude_min=not low_allowed) | st.integers(low + 1, high or 10**9))
    taken = getattr(parse(**{option: seconds}), option)
    assert taken == seconds
    assert type(taken) is float


@durations
@given(data=st.data())
def test_a_duration_out_of_its_bounds_is_refused_and_the_text_names_option_value_and_bounds(option, data):
    low, _, high = DURATIONS[option]
    outside = st.floats(max_value=low, exclude_max=True)
    if high is not None:
        outside |= st.floats(min_value=high, exclude_min=True)
    seconds = data.draw(outside)
    text = refusal(**{option: seconds})
    assert option in text
    assert repr(seconds) in text
    assert str(low) in text
    assert str(high or "") in text


@durations
@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 10**400, -1])
def test_a_duration_that_no_clock_can_wait_for_is_refused(option, seconds):
    assert option in refusal(**{option: seconds})


@durations
@pytest.mark.parametrize("value", [True, False, "10", "10s", None, [10], 10j])
def test_a_duration_is_a_number_and_neither_a_bool_nor_a_text(option, value):
    if value is None and DEFAULTS[option] is None:
        pytest.skip("without a value it is off")
    text = refusal(**{option: value})
    assert option in text
    assert "timedelta" in text


@durations
def test_a_timedelta_is_a_duration(option):
    assert getattr(parse(**{option: timedelta(minutes=1, milliseconds=500)}), option) == 60.5


@durations
def test_a_timedelta_has_the_same_bounds(option):
    assert option in refusal(**{option: timedelta(seconds=-1)})


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_count_of_backlog_queues_is_at_least_one(count):
    assert parse(backlog_queue_count=count).backlog_queue_count == count


@pytest.mark.parametrize("count", [0, -1, 1.0, 2.5, math.nan, "10", True, None])
def test_a_count_that_is_no_whole_number_above_zero_is_refused(count):
    text = refusal(backlog_queue_count=count)
    assert "backlog_queue_count" in text
    assert repr(count) in text


@flags
@pytest.mark.parametrize("flag", [True, False])
def test_a_flag_is_true_or_false(option, flag):
    assert getattr(parse(**{option: flag}), option) is flag


@flags
@pytest.mark.parametrize("value", [0, 1, "false", "", None])
def test_a_flag_that_is_neither_true_nor_false_is_refused(option, value):
    assert option in refusal(**{option: value})


@pytest.mark.parametrize("option", ["primary_options", "secondary_options"])
def test_options_of_a_side_are_passed_on_untouched(option):
    options = {"anything": object(), "max_retries": 3}
    assert getattr(parse(**{option: options}), option) is options


@pytest.mark.parametrize("option", ["primary_options", "secondary_options"])
def test_options_of_a_side_may_be_none_and_nothing_else_than_a_dict(option):
    assert getattr(parse(**{option: None}), option) == {}
    for value in ("visibility_timeout=60", [("a", 1)], 7):
        assert option in refusal(**{option: value})


@pytest.mark.parametrize("option", ["primary_name"])
@pytest.mark.parametrize("value", ["", 7, b"shop", True])
def test_a_name_is_a_text_that_is_not_empty(option, value):
    assert option in refusal(**{option: value})


@pytest.mark.parametrize("option", ["primary_name"])
def test_a_name_may_be_left_to_the_default(option):
    assert getattr(parse(**{option: None}), option) is None


@pytest.mark.parametrize("queue_type", [None, "classic", "quorum"])
def test_a_backlog_queue_type_is_one_of_rabbitmqs_durable_ones(queue_type):
    assert parse(backlog_queue_type=queue_type).backlog_queue_type == queue_type


@pytest.mark.parametrize("queue_type", ["stream", "Quorum", "", True, ["quorum"]])
def test_any_other_backlog_queue_type_is_refused(queue_type):
    assert "'quorum'" in refusal(backlog_queue_type=queue_type)


# -- the secondary --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"secondary": None}, {"secondary": ""}])
def test_without_a_secondary_the_error_says_what_to_write(options):
    with pytest.raises(ConfigurationError, match=r"broker_transport_options = \{'secondary': 'amqp://"):
        PairedNamespaceOptions.parse(options)


@pytest.mark.parametrize("secondary", ["spare-broker", "spare-broker:5672", 7, [SPARE], b"amqp://spare//"])
def test_a_secondary_that_is_no_url_is_refused(secondary):
    assert "amqp://spare-broker//" in refusal(secondary=secondary)


@pytest.mark.parametrize(
    "secondary",
    ["paired+amqp://spare//", "paired://spare//", "PAIRED+redis://spare", "amqp://a//;paired+amqp://b//"],
)
def test_a_paired_secondary_is_refused(secondary):
    assert "without 'paired+'" in refusal(secondary=secondary)


@pytest.mark.parametrize(
    "secondary",
    [SPARE, "amqp://a//;amqp://b//", "redis://:pw@spare/1", "azureservicebus://Root:a/b+c=@spare", "sqs://"],
)
def test_any_other_url_is_a_secondary(secondary):
    assert parse(secondary=secondary).secondary == secondary


# -- unknown keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("failover_intervall", "failover_interval"),
        ("fail_over_interval", "failover_interval"),
        ("ping_intervl", "ping_interval"),
        ("secondary_url", "secondary"),
        ("Secondary", "secondary"),
        ("backlog_queues_count", "backlog_queue_count"),
        ("enable_siphon", "enable_syphon"),
        ("primary_option", "primary_options"),
        ("divert_while_suspected", "divert_while_suspect"),
    ],
)
def test_a_misspelt_key_is_refused_and_the_nearest_one_named(misspelt, meant):
    text = refusal(**{misspelt: 1})
    assert repr(misspelt) in text
    assert f"did you mean {meant!r}?" in text


def test_a_key_that_resembles_none_gets_the_list_of_all():
    text = refusal(zzz=1)
    assert all(option in text for option in DEFAULTS)


def test_an_option_of_a_broker_is_sent_to_where_it_belongs():
    text = refusal(visibility_timeout=3600)
    assert "'primary_options'" in text
    assert "'secondary_options'" in text


def test_a_key_that_is_no_text_is_refused():
    with pytest.raises(ConfigurationError, match="unknown option 7"):
        PairedNamespaceOptions.parse({"secondary": SPARE, 7: 7})


@pytest.mark.parametrize(
    "key",
    ["max_retries", "interval_start", "interval_step", "interval_max", "errback", "connect_retries_timeout"],
)
def test_kombus_retry_keys_are_let_through(key):
    assert parse(**{key: 1}) == parse()


def test_what_celery_merges_into_the_transport_options_is_let_through():
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.broker_transport_options = {"secondary": SPARE, "ping_interval": 5}
    app.conf.task_publish_retry_policy = {"max_retries": 1, "retry_errors": (OperationalError,)}
    for connection in (app.connection_for_write(), app.connection_for_read()):
        assert PairedNamespaceOptions.parse(connection.transport_options) == parse(ping_interval=5)


def test_parsing_changes_nothing_in_what_was_given():
    options = {"secondary": SPARE, "max_retries": 3, "ping_interval": timedelta(seconds=5)}
    before = dict(options)
    PairedNamespaceOptions.parse(options)
    assert options == before


def test_options_never_change():
    with pytest.raises(AttributeError):
        parse().secondary = "amqp://another//"


# -- secrets --------------------------------------------------------------------------------------------------------

awkward = st.text("/+=@:?#[]%&;, \\'\"{}é\n", max_size=4)
#: Passwords that can be told from everything else.
passwords = st.builds(lambda *parts: "hush".join([*parts, ""]), awkward, awkward, awkward).filter(
    lambda password: ";hush://" not in password  # Kombu, too, takes this for the beginning of another broker's URL
)
url_forms = st.sampled_from(
    [
        "amqp://user:{}@spare//",
        "redis://:{}@spare:6379/0",
        "amqps://user:{}@spare:5671/shop",
        "azureservicebus://RootManage:{}@spare.servicebus.windows.net",
        "azurestoragequeues://:{}@https://spare.queue.core.windows.net",
        "sqs://key:{}@",
        "amqp://user:{0}@one//;amqp://user:{0}@two//",
    ]
)


@given(passwords, url_forms)
@example("hush/hush+hush=", "azureservicebus://RootManage:{}@spare")
@example("12/hush=", "azureservicebus://RootManage:{}@spare")
@example("hush", "amqp://user:{0}@one//;amqp://user:{0}@two//")
@example("hush@hush", "amqp://user:{}@spare//")
@example("hush?hush", "amqp://user:{}@spare//")
@example("hush@hush?hush", "amqp://user:{}@spare//")
@example("hush;hush", "amqp://user:{}@spare//")
@example("[hush", "amqp://user:{}@spare//")
def test_no_password_is_shown_quoted_or_not(password, form):
    for written in (password, quote(password, safe="")):
        url = form.format(written)
        assert "hush" not in without_secrets(url)
        assert "hush" not in repr(PairedNamespaceOptions(secondary=url))


@given(passwords)
def test_no_option_of_a_side_is_shown_but_its_name(password):
    options = parse(primary_options={"password": password}, secondary_options={"credentials": {"key": password}})
    assert "hush" not in repr(options)
    assert "primary_options=['password']" in repr(options)


@given(passwords, url_forms)
def test_no_error_shows_a_password(password, form):
    url = form.format(password)
    for options in ({"secondary": "paired+" + url}, {"secondary": url, "ping_interval": -1}, {"secondary": [url]}):
        assert "hush" not in refusal(**options)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://spare-broker//", "amqp://spare-broker//"),
        ("amqp://guest:guest@spare-broker:5672/shop", "amqp://guest:**@spare-broker:5672/shop"),
        ("redis://:pw@spare:6379/0", "redis://:**@spare:6379/0"),
        ("redis://spare:6379/0?password=pw&db=1", "redis://spare:6379/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("azureservicebus://Root:a/b+c=@spare", "azureservicebus://Root:**@spare"),
        ("amqp://u:a@one//;amqp://u:b@two//", "amqp://u:**@one//;amqp://u:**@two//"),
        ("user:pw@spare:5672", "**"),
        ("spare-broker:5672", "spare-broker:5672"),
        ("", ""),
    ],
)
def test_of_a_url_everything_else_is_shown(url, shown):
    assert without_secrets(url) == shown


@given(st.text() | awkward.map("amqp://".__add__))
def test_showing_a_url_never_fails(url):
    assert isinstance(without_secrets(url), str)


def test_repr_shows_every_option():
    text = repr(parse(secondary="amqp://guest:guest@spare//"))
    assert "secondary='amqp://guest:**@spare//'" in text
    assert all(f"{option}=" in text for option in DEFAULTS)


# -- classify_failure -----------------------------------------------------------------------------------------------


def classify(exc):
    return FailureKind.FAULT if isinstance(exc, LookupError) else None


@pytest.mark.parametrize("path", [f"{__name__}.classify", f"{__name__}:classify"])
def test_a_classifier_is_found_by_its_import_path(path):
    found = parse(classify_failure=path).classify_failure
    assert found(LookupError()) is FailureKind.FAULT
    assert found(OSError()) is None


def test_a_classifier_may_be_the_function_itself_or_none():
    assert parse(classify_failure=classify).classify_failure is classify
    assert parse(classify_failure=None).classify_failure is None


@pytest.mark.parametrize(
    "value", ["no.such.module", f"{__name__}.no_such_name", "", ":", "..x", f"{__name__}.SPARE", 7]
)
def test_a_classifier_that_cannot_be_found_or_called_is_refused(value):
    assert "classify_failure" in refusal(classify_failure=value)


# -- the primary's name ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("azureservicebus://Root:key@contoso.servicebus.windows.net", "contoso"),
        ("azureservicebus://Root:key@contoso", "contoso"),
        ("azureservicebus://Root:a/b+c/d=@contoso.servicebus.windows.net", "contoso"),
        ("azureservicebus://DefaultAzureCredential@contoso.servicebus.windows.net", "contoso"),
        ("azurestoragequeues://:a/b+c=@https://contoso.queue.core.windows.net", "contoso"),
        ("amqp://main-broker//", "main-broker"),
        ("amqp://user:p%40ss@main-broker:5672/shop", "main-broker-shop"),
        ("amqp://main-broker:5673//", "main-broker-5673"),
        ("amqp://rabbit.prod.example.com//", "rabbit.prod.example.com"),
        ("amqp://MAIN.example.com//", "main.example.com"),
        ("amqp://localhost:5672//", "localhost-5672"),
        ("amqp://guest:guest@localhost:5672//", "localhost-5672"),
        ("amqp://localhost//", "localhost-5672"),
        ("redis://127.0.0.1:6379", "127.0.0.1-6379"),
        ("redis://127.0.0.1:6379/0", "127.0.0.1-6379"),
        ("redis://10.0.0.7", "10.0.0.7-6379"),
        ("redis://cache.example.com:6379/1", "cache.example.com-1"),
        ("redis://[::1]:6379/0", "1-6379"),
        ("redis://[fe80::1:2]:6379", "fe80-1-2-6379"),
        ("redis://[fe80::1:2]", "fe80-1-2-6379"),
        ("filesystem://", "filesystem"),
        ("filesystem:///var/queues", "filesystem-var-queues"),
        ("memory://", "memory"),
        ("memory://localhost/", "localhost"),
        ("amqp://main//;amqp://second//", "main"),
        ("redis+socket:///var/run/redis.sock", "redis-socket-var-run-redis.sock"),
        ("mongodb://one:27017,two:27017/celery", "one-celery"),
    ],
)
def test_a_primary_gets_a_name_that_no_other_primary_has(url, name):
    assert default_primary_name(url) == name


@given(st.from_regex(r"\A[a-z0-9]{1,8}://([a-z]{0,3}(:[a-z]{0,3})?@)?[^/@\[\]]{0,12}(:[0-9]{1,6})?(/.{0,6})?\Z"))
def test_whatever_the_url_the_name_can_be_the_beginning_of_a_queues_name(url):
    name = default_primary_name(url)
    assert name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


@pytest.mark.parametrize(
    "key",
    [
        "confirm_publish",
        "visibility_timeout",
        "global_keyprefix",
        "queue_order_strategy",
        "socket_timeout",
        "master_name",
    ],
)
def test_an_option_that_a_broker_had_before_is_moved_to_its_side(key):
    text = refusal(**{key: 1})
    assert "move it into 'primary_options'" in text
    assert f"'primary_options': {{{key!r}: …}}" in text
    assert "did you mean" not in text
