"""What an outage costs: the cost model, and the price sheets that turn its operations into money.

It knows nothing of the rest of the package.
"""
