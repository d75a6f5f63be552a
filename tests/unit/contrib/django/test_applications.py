"""Which Celery applications are set up with Django, and which one a page is about."""

from __future__ import annotations

import pytest
from celery import Celery, _state

from kombu_paired.contrib.celery import SyphonStep
from kombu_paired.contrib.django.applications import PRIVATE, applications, set_up_all, setting, the_application
from kombu_paired.errors import ConfigurationError


def is_set_up(app):
    return SyphonStep in app.steps["worker"] and getattr(app._get_backend, "is_guarded", False)


def test_celery_has_what_is_taken_from_inside_of_it():
    assert all(hasattr(_state, name) for name in PRIVATE["celery._state"])


def test_every_application_with_a_paired_broker_is_set_up_and_no_other(make):
    shop, mail, plain, none = make("shop"), make("mail"), make("plain", "memory://main"), make("none", None)
    set_up_all()
    assert [is_set_up(each) for each in (shop, mail, plain, none)] == [True, True, False, False]


def test_of_several_urls_the_first_says_whether_it_is_paired(make):
    together, listed = make("shop", "paired+memory://a;paired+memory://b"), make("mail", ["paired+memory://a"])
    set_up_all()
    assert is_set_up(together)
    assert is_set_up(listed)


def test_an_application_that_is_made_later_is_set_up_when_it_is_ready(make):
    set_up_all()
    late = make("late")
    assert not is_set_up(late)
    late.finalize()
    assert is_set_up(late)


def test_settings_that_celery_cannot_read_do_not_keep_django_from_starting(make, made):
    app = Celery("mixed", set_as_current=False)
    app.config_from_object({"broker_url": "paired+redis://main", "CELERY_ACCEPT_CONTENT": ["json"]})
    made.append(app)
    fine = make("shop")
    set_up_all()
    assert not is_set_up(app)
    assert is_set_up(fine)


def test_the_application_that_celery_falls_back_to_is_none_of_the_projects(made):
    made.append(Celery("default", fixups=[], set_as_current=False, loader="default"))
    assert applications() == []


def test_the_current_application_is_the_one_if_its_broker_is_paired(make):
    make("mail")
    make("shop").set_default()
    assert the_application().main == "shop"


def test_else_the_only_one_whose_broker_is(make):
    make("plain", "memory://main").set_default()
    make("shop")
    assert the_application().main == "shop"


def test_which_of_several_is_not_guessed(make):
    make("plain", "memory://main").set_default()
    make("shop"), make("mail")
    with pytest.raises(ConfigurationError, match=r"'mail', 'shop'"):
        the_application()


def test_what_to_do_where_there_is_none(make):
    make("plain", "memory://main")
    with pytest.raises(ConfigurationError, match=r"write 'paired\+' before CELERY_BROKER_URL"):
        the_application()


@pytest.mark.parametrize(("namespace", "name"), [("CELERY", "CELERY_BROKER_URL"), (None, "broker_url")])
def test_a_setting_has_the_name_that_it_has_where_it_is_written(namespace, name):
    assert setting(Celery("shop", namespace=namespace, set_as_current=False), "broker_url") == name
