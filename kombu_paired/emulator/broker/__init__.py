"""A namespace without sockets: its entities, their messages, and what goes wrong in it on request."""
