"""The web side: ``uvicorn web:web``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from fastapi.concurrency import run_in_threadpool
from shop import app, send_receipt

import kombu_paired


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    yield
    await run_in_threadpool(say_goodbye)


def say_goodbye() -> None:
    """A process that exits does this by itself; one that goes on, as with --reload and in tests, keeps nothing open."""
    with app.connection_for_write() as connection:
        kombu_paired.pairing_of(connection).close()


web = FastAPI(lifespan=lifespan)


@web.post("/orders/{order}", status_code=202)
async def place_order(order: int) -> dict[str, object]:
    """Accept an order. ``delay()`` waits for a broker that is silent: in a thread, so that other requests go on."""
    result = await run_in_threadpool(send_receipt.delay, order)
    return {"order": order, "task": result.id}


@web.get("/health")
async def health(response: Response) -> dict[str, object]:
    """Green while work is accepted, also while it is diverted."""
    found = await run_in_threadpool(kombu_paired.health, app)
    response.status_code = 200 if found.accepts_work else 503
    return {"accepts_work": found.accepts_work, "primary": found.primary.reachable}


@web.get("/alive")
async def alive() -> dict[str, bool]:
    """The event loop turns."""
    return {"alive": True}
