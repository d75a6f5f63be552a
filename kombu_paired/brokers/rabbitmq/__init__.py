"""RabbitMQ, by AMQP 0-9-1.

==============  ======================================================================================================
``driver``      what RabbitMQ can do for a pairing
``kinds``       which kind of failure an exception of py-amqp is
``links``       a connection that knows whether the broker is in alarm
``sending``     senders with publisher confirms
``receiving``   receivers of backlog queues
``compat``      what is private in py-amqp, and used nevertheless
==============  ======================================================================================================
"""
