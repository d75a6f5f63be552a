"""One more broker, as small as one can be: a server in a process of its own, a Kombu transport to it, and a driver.

``server`` and ``transport`` are what others would have written, like RabbitMQ and py-amqp. ``driver`` is the one file
that docs/contributing.md asks for, and the conformance suite runs on it. ``local`` starts the server for a test.
"""
