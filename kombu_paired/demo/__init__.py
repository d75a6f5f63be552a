"""The demonstration: a Celery queue whose broker is killed in mid-traffic, with the product as any user has it."""
