"""Namespaces: brokers as a pairing sees them.

==================  ==================================================================================================
``base``            the roles of a namespace, its senders and receivers
``driver``          what a kind of broker can do, and how one works with it
``drivers``         which driver is used for a URL: a line for each scheme
``kombu``           the namespace on any transport of Kombu's, with what the driver of its broker can do
``links``           links to any transport of Kombu's
``generic``         drivers of transports that have no links of their own
``amqp``            RabbitMQ: its driver and its links
``redis_driver``    Redis: its driver, which needs no package before it is used
``redis``           its links
``redis_transport`` the Kombu transport of its consumers; ``redis_taking``: how they take messages
``servicebus``      Azure Service Bus
``urls``            which URLs make sense, and which two brokers may be paired; ``naming``: what a primary is called
``sockets``         sockets that keep to the deadline of a call
``tls``             failures of TLS
``letting_go``      letting go of what may be broken already
==================  ==================================================================================================
"""
