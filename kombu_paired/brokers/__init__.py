"""Brokers as a pairing sees them: namespaces, each on the driver of its broker.

==================  ==================================================================================================
``roles``           the roles of a namespace, its senders and receivers
``driver``          what a kind of broker can do, and how one works with it
``drivers``         which driver is used for a URL: a line for each scheme
``kombu``           the namespace on any transport of Kombu's, with what the driver of its broker can do
``forms``           forms of a message: sent, received, dead
``links``           links to any transport of Kombu's
``generic``         drivers of transports that have no links of their own
``rabbitmq``        RabbitMQ
``redis``           Redis
``servicebus``      Azure Service Bus
``spool``           backlog queues on the local disk
``urls``            which URLs make sense, and which two brokers may be paired; ``naming``: what a primary is called
``sockets``         sockets that keep to the deadline of a call
``tls``             failures of TLS
``compat``          what is private in Kombu for every transport, and used nevertheless
``letting_go``      letting go of what may be broken already
==================  ==================================================================================================
"""
