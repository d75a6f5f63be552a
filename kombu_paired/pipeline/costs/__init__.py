"""What a month with outages costs on Azure Service Bus: operations, and their prices. Pure."""
