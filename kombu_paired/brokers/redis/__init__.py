"""Redis, with or without TLS or Sentinel.

==================  ==================================================================================================
``driver``          what Redis can do for a pairing                            without its package until it is used
``kinds``           which kind of failure an exception of redis-py is
``connections``     connections that keep to a deadline, and the one client of a channel
``items``           messages as they lie in a list
``links``           links that send
``receiving``       receivers of backlog queues
``scripts``         what Redis does in one step
``transport``       the Kombu transport of consumers, whose channel looks by script,
``waiting``         waits where there is nothing,
``taking``          in lists of its own,
``noting``          and notes what it takes;
``unacknowledged``  its QoS, ``poller``: its poller
``compat``          what is private in redis-py and Kombu, and used nevertheless
==================  ==================================================================================================
"""
