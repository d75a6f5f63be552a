"""System checks of the settings: each usual mistake has an id, and says what to do."""

from __future__ import annotations

import pytest
from celery import Celery, _state
from django.core import checks
from django.test import override_settings

from kombu_paired.brokers.redis.driver import Redis
from kombu_paired.contrib.django.checks import _as_settings_say, check_applications

REDIS, SPARE = "paired+redis://:hushhush@main:6379/0", {"secondary": "redis://spare/0"}


def found(make, url=REDIS, options=SPARE, **conf):
    make("shop", url, broker_transport_options=options, **conf)
    messages = check_applications()
    assert "hush" not in str(messages)
    return {each.id.partition(".")[2]: each for each in messages}


def test_they_are_registered():
    assert check_applications in checks.registry.registry.get_checks()


def test_settings_that_are_right_say_nothing(make):
    assert found(make) == {}


def test_a_misspelt_option_is_named_with_the_nearest(make):
    [error] = found(make, options={**SPARE, "send_timeuot": 3}).values()
    assert (error.id, error.level) == ("kombu_paired.E001", checks.ERROR)
    assert "CELERY_BROKER_TRANSPORT_OPTIONS" in error.msg
    assert "send_timeout" in error.msg
    assert error.hint
    assert "shop" in str(error)


@pytest.mark.parametrize("options", [{}, None, {**SPARE, "ping_interval": 0}, {"secondary": "spare"}])
def test_so_is_an_option_that_is_missing_or_out_of_bounds(make, options):
    assert [*found(make, options=options)] == ["E001"]


@pytest.mark.parametrize("secondary", ["redis://main", "reddis://spare", "amqp://u:hush/hush@spare//"])
def test_two_brokers_that_cannot_be_paired_are_an_error(make, secondary):
    assert [*found(make, options={"secondary": secondary})] == ["E002"]


def test_so_is_a_package_that_is_not_installed(make, monkeypatch):
    monkeypatch.setattr(Redis, "is_installed", False)
    [error] = found(make).values()
    assert error.id == "kombu_paired.E003"
    assert error.hint == "pip install 'kombu-paired[redis]'"


def test_settings_that_celery_cannot_read_are_an_error(made):
    app = Celery("mixed", set_as_current=False)
    app.config_from_object({"broker_url": "paired+redis://main", "CELERY_ACCEPT_CONTENT": ["json"]})
    made.append(app)
    assert [each.id for each in check_applications()] == ["kombu_paired.E004"]


@pytest.mark.parametrize(
    ("url", "now", "instead"),
    [
        ("redis://:hushhush@main/0", "is redis://:**@main/0, which is not paired", "'paired+redis://:**@main/0'"),
        (None, "is not set", "'paired+amqp://main-broker//'"),
    ],
)
def test_a_broker_that_is_not_paired_is_a_warning(make, url, now, instead):
    [warning] = found(make, url=url).values()
    assert (warning.id, warning.level) == ("kombu_paired.W001", checks.WARNING)
    assert now in warning.msg
    assert instead in warning.hint


def test_but_not_beside_one_that_is(make):
    make("mail", "redis://elsewhere/0")
    assert found(make) == {}


@pytest.mark.parametrize("backend", ["redis://main/1", "redis://:hushhush@main:6379/0", "rpc://"])
def test_results_that_are_away_with_the_primary_are_a_warning(make, backend):
    [warning] = found(make, result_backend=backend).values()
    assert warning.id == "kombu_paired.W003"
    assert "CELERY_TASK_IGNORE_RESULT" in warning.hint


@pytest.mark.parametrize(
    "conf",
    [
        {"result_backend": "redis://main/1", "task_ignore_result": True},
        {"result_backend": "redis://other/1"},
        {"result_backend": "redis://main:port"},
        {"result_backend": "django-db"},
        {"result_backend": "cache+memcached://main"},
    ],
)
def test_others_are_not(make, conf):
    assert found(make, **conf) == {}


@override_settings(CELERY_BROKER_URL=REDIS, CELERY_BROKER_TRANSPORT_OPTIONS={**SPARE, "secundary": "x"})
def test_without_an_application_the_settings_are_judged_and_it_is_missed(made):
    assert [each.id for each in check_applications()] == ["kombu_paired.W002", "kombu_paired.E001"]


def test_to_judge_them_leaves_no_application_behind():
    with override_settings(CELERY_BROKER_URL=REDIS):
        app = _as_settings_say()
    assert app not in _state._get_active_apps()
