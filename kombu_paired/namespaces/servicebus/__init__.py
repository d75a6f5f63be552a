"""Azure Service Bus, natively, through its official SDK.

==================  ==================================================================================================
``address``         what a URL says: where, with which credentials                             pure, without the SDK
``names``           what the service calls a queue, an exchange, a subscription                pure, without the SDK
``kinds``           which kind of failure an exception of the SDK is
``wire``            messages as they lie in the service
``sdk``             the SDK's clients and links, each step of them bounded in time
``entities``        what exists in a namespace: looked up, created, deleted
``fetching``        one receiver per consumed queue, which fetches ahead, renews locks and settles
``transport``       the Kombu transport
``links``           on it what a pairing needs: senders, receivers, pings
``driver``          what the service can do for a pairing                            without the SDK until it is used
==================  ==================================================================================================
"""
