"""Azure Service Bus, natively, through its official SDK.

==================  ==================================================================================================
``address``         what a URL says: where, with which credentials                             pure, without the SDK
``settings``        the transport options, their defaults and bounds                             pure, without the SDK
``names``           what the service calls a queue, an exchange, a subscription                pure, without the SDK
``ids``             which send a message is, for duplicate detection                           pure, without the SDK
``credentials``     who one is: a key, an identity, a signature, by import path
``management``      how requests to the management travel: past proxies, to local servers, to a custom endpoint
``compat``          what is private in the SDK: each name once
``compat_…``        ... of what receives, and of what shares a connection
``kinds``           which kind of failure an exception is
``bounded``         calls of the SDK, each bounded in time
``wire``            messages as they lie in the service
``frames``          what AMQP sends, as far as who shares a connection has to know     pure, without the SDK
``trunk``           a connection that links share, and each one's place on it
``waiter``          ... how a thread waits that does not read from it
``trunks``          ... those of this process
``amqp_links``      links that send and receive, over the SDK's
``clients``         the SDK's clients: how a namespace is reached, with which credentials
``entities``        what exists in a namespace: looked up, created, deleted
``asking``          whether the service answers and lets us in, with a key for all of it or for one queue
``outgoing``        open links that send, one per queue or topic
``settling``        what the service is told of a message
``holding``         what a consumer holds under lock until the service has heard what becomes of it
``ahead``           how much is fetched before there is room for it                     pure, without the SDK
``fetching``        one receiver per consumed queue, which fetches ahead
``fetchers``        ... those of a channel, and the room that they share
``getting``         messages that are asked for one at a time
``declaring``       what a channel declares, and what the service makes of it
``transport``       the Kombu transport
``backlog``         on it what a pairing needs: backlog queues, made, found, looked into
``links``           ... the link that connects, routes and pings
``sending``         ... senders
``receiving``       ... receivers
``driver``          what the service can do for a pairing                            without the SDK until it is used
==================  ==================================================================================================
"""
