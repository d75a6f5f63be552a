"""Django: ``INSTALLED_APPS += ["kombu_paired.contrib.django"]``.

Workers, beat and web processes are set up as :func:`kombu_paired.setup` does it, without a line in ``celery.py``;
system checks judge the settings; ``manage.py paired_status`` and its like are the commands of ``kombu-paired``;
:mod:`kombu_paired.contrib.django.urls` is a health page, and the admin has a page of the backlog.
"""
