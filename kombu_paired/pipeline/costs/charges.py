"""What a month of messages costs, in operations of Azure Service Bus. Pure.

Service Bus charges every call as an operation, in steps of 64 KB; a message that is received in peek-lock mode costs
its receive and its complete; an empty receive, a lock renewal, a ping and a heartbeat of Celery's are operations, too.
So a message that goes straight costs three, and one that takes the detour six::

    direct     send_to_primary                                                    receive, complete at the primary
    diverted   send_to_backlog, receive and complete in the backlog, send_home,   receive, complete at the primary

Source: "Paired namespace implementation details and cost implications" and the pricing page of Azure Service Bus.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = (
    "CONSUME",
    "HEARTBEAT",
    "HOURS_OF_MONTH",
    "LOCK_MS",
    "STAGES",
    "STEP",
    "Load",
    "Outages",
    "Syphons",
    "Workers",
    "diverted_of_month",
    "heartbeats",
    "idle_consumes",
    "idle_receives",
    "of_idle_hour",
    "of_message",
    "of_month",
    "steps",
)

#: Bytes that one operation carries.
STEP = 64 * 1024
#: A worker holds a lock for so many milliseconds before it renews it (docs/architecture.md, rule 2).
LOCK_MS = 60_000
#: Seconds between two heartbeats of a worker, as Celery has it.
HEARTBEAT = 2.0
#: Seconds after which a consumer whose queue is empty asks again.
CONSUME = 60.0
#: A month, as the documents count it: 30 days.
HOURS_OF_MONTH = 30 * 24
_DAY = 86400.0

#: What is charged, in the order in which a message meets it; then what is charged while nothing moves.
STAGES = (
    "send_to_primary",
    "send_to_backlog",
    "receive_from_backlog",
    "complete_in_backlog",
    "send_home",
    "receive_from_primary",
    "complete_at_primary",
    "lock_renewal",
    "ping",
    "heartbeat",
    "idle_consume",
    "idle_receive",
)


@dataclass(frozen=True)
class Load:
    """What the application sends.

    Attributes:
        messages_per_day: of all processes together, evenly over the day.
        size: bytes of one message.
        renewals_per_message: how often a worker renews the lock of a message while its task runs.
    """

    messages_per_day: float
    size: int = 1024
    renewals_per_message: float = 0.0

    def __post_init__(self) -> None:
        _require(0 <= self.messages_per_day < math.inf, "messages_per_day must not be negative", self.messages_per_day)
        _require(self.size >= 0, "size must not be negative", self.size)
        _require(self.renewals_per_message >= 0, "renewals_per_message must not be negative", self.renewals_per_message)


@dataclass(frozen=True)
class Outages:
    """How the primary fails, and who pings it meanwhile.

    Attributes:
        seconds: how long one outage lasts.
        per_month: how many there are in 30 days.
        entities: how many entities fail with it.
        processes: how many processes send to each of them; each has a ping task of its own.
        failover_interval, ping_interval: the pairing's settings, in seconds.
    """

    seconds: float = 0.0
    per_month: float = 1.0
    entities: int = 1
    processes: int = 1
    failover_interval: float = 10.0
    ping_interval: float = 60.0

    def __post_init__(self) -> None:
        _require(0 <= self.seconds < math.inf, "seconds must not be negative", self.seconds)
        _require(self.per_month >= 0, "per_month must not be negative", self.per_month)
        _require(self.entities >= 0 and self.processes >= 0, "entities and processes must not be negative", "")
        _require(self.failover_interval >= 0, "failover_interval must not be negative", self.failover_interval)
        _require(self.ping_interval > 0, "ping_interval must be above 0", self.ping_interval)

    @property
    def pings_of_one(self) -> int:
        """Pings of one entity by one process in one outage: the last of them finds that it is over.

        Those that do not reach the namespace are not charged; nobody knows beforehand which these are, so this is the
        most that can be charged. An outage that ends within the failover interval is never pinged.
        """
        if self.seconds <= 0 or self.seconds < self.failover_interval:
            return 0
        return max(1, math.ceil((self.seconds - self.failover_interval) / self.ping_interval))

    @property
    def diverting_seconds(self) -> float:
        """For how long one outage diverts: until the ping that finds that it is over."""
        if not self.pings_of_one:
            return self.seconds
        return max(self.seconds, self.failover_interval + self.pings_of_one * self.ping_interval)


@dataclass(frozen=True)
class Syphons:
    """Who looks into the backlog.

    Attributes:
        backlog_queues: how many there are.
        poll: seconds of one long poll of a backlog queue that is empty.
        count: how many syphons run; each polls every backlog queue.
    """

    backlog_queues: int = 10
    poll: float = 900.0
    count: int = 1

    def __post_init__(self) -> None:
        _require(self.backlog_queues >= 0 and self.count >= 0, "backlog_queues and count must not be negative", "")
        _require(self.poll > 0, "poll must be above 0", self.poll)


@dataclass(frozen=True)
class Workers:
    """Celery workers, and what they do while there is nothing to do.

    Attributes:
        count: how many there are.
        queues: how many each consumes from.
        heartbeat: seconds between two heartbeats of a worker, which are events; 0: they are turned off.
        remote_control: each has a subscription of its own besides, which it consumes from, too.
    """

    count: int = 1
    queues: int = 1
    heartbeat: float = HEARTBEAT
    remote_control: bool = True

    def __post_init__(self) -> None:
        _require(self.count >= 0 and self.queues >= 0, "count and queues of workers must not be negative", "")
        _require(0 <= self.heartbeat < math.inf, "heartbeat must not be negative", self.heartbeat)


def steps(size: int) -> int:
    """Operations that carrying ``size`` bytes once takes; an empty message takes one."""
    return max(1, -(-size // STEP))


def of_message(size: int, *, diverted: bool) -> dict[str, int]:
    """Operations of one message from its send to its complete, by stage; stages it does not meet are left out.

    Arguments:
        size: bytes.
        diverted: it takes the detour through a backlog queue.
    """
    carried = steps(size)
    arrival = {"receive_from_primary": carried, "complete_at_primary": 1}
    if not diverted:
        return {"send_to_primary": carried, **arrival}
    detour = {
        "send_to_backlog": carried,
        "receive_from_backlog": carried,
        "complete_in_backlog": 1,
        "send_home": carried,
    }
    return {**detour, **arrival}


def idle_receives(syphons: Syphons, hours: float) -> int:
    """Receives of backlog queues that stay empty for so many hours: 10 queues, polls of 15 minutes: 40 an hour."""
    return syphons.backlog_queues * syphons.count * _times(hours, syphons.poll)


def heartbeats(workers: Workers, hours: float) -> int:
    """Heartbeats of so many hours, each of which is a send: 1,800 an hour for each worker, with the defaults."""
    return workers.count * _times(hours, workers.heartbeat) if workers.heartbeat else 0


def idle_consumes(workers: Workers, hours: float) -> int:
    """Receives of so many hours that find nothing: 60 an hour for each queue of a worker, and as many for the remote
    control. A worker that is busy makes fewer.
    """
    return workers.count * (workers.queues + workers.remote_control) * _times(hours, CONSUME)


def of_idle_hour(syphons: Syphons, workers: Workers) -> dict[str, int]:
    """Operations, by stage, of an hour in which nothing is sent."""
    return _of_idle(syphons, workers, 1)


def _of_idle(syphons: Syphons, workers: Workers, hours: float) -> dict[str, int]:
    return {
        "heartbeat": heartbeats(workers, hours),
        "idle_consume": idle_consumes(workers, hours),
        "idle_receive": idle_receives(syphons, hours),
    }


def _times(hours: float, seconds: float) -> int:
    return math.floor(hours * 3600 / seconds * (1 + 1e-12))


def of_month(load: Load, outages: Outages, syphons: Syphons, workers: Workers) -> dict[str, int]:
    """Operations of 30 days by stage, all of :data:`STAGES`, in their order.

    Messages that come home in the next month are counted in this one, where they were diverted.
    """
    messages = math.ceil(load.messages_per_day * HOURS_OF_MONTH / 24)
    diverted = diverted_of_month(load, outages)
    total = dict.fromkeys(STAGES, 0)
    for count, is_diverted in ((messages - diverted, False), (diverted, True)):
        for stage, operations in of_message(load.size, diverted=is_diverted).items():
            total[stage] += count * operations
    total["lock_renewal"] = math.ceil(messages * load.renewals_per_message)
    total["ping"] = math.ceil(outages.per_month * outages.pings_of_one * outages.entities * outages.processes)
    total |= _of_idle(syphons, workers, HOURS_OF_MONTH)
    return total


def diverted_of_month(load: Load, outages: Outages) -> int:
    """Messages of 30 days that take the detour; never more than there are."""
    messages = math.ceil(load.messages_per_day * HOURS_OF_MONTH / 24)
    seconds = outages.diverting_seconds * outages.per_month
    return min(messages, math.ceil(load.messages_per_day * seconds / _DAY))


def _require(holds: bool, text: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{text}: {value}" if value != "" else text)
