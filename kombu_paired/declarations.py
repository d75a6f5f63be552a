"""What the application declared, so that it can be declared again where and when it is missing. Pure.

Kombu declares a queue before it publishes to it, once per connection. The book keeps these declarations: a new link to
the primary repeats those of an entity before the first message, and a diverted message carries them to the syphon.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kombu.utils.json import dumps, loads

from kombu_paired.errors import MalformedBacklogMessage

__all__ = (
    "Declaration",
    "DeclarationBook",
    "DeclarationKey",
    "Entity",
    "as_it_is",
    "decode_declarations",
    "encode_declarations",
)

#: The channel methods that declare, and the arguments that say how to answer rather than what to declare.
OPERATIONS = frozenset({"exchange_declare", "queue_declare", "queue_bind", "exchange_bind"})
_NOT_CARRIED = frozenset({"nowait", "passive", "channel"})

#: What a declaration is about: a later one of the same key takes its place.
DeclarationKey = tuple[str, ...]

#: Reply queues that are remembered: a process has one per thread, and threads come and go.
REPLY_QUEUES = 1000


class Entity(NamedTuple):
    """One destination on the primary: a queue, or an exchange with its routing key."""

    exchange: str
    routing_key: str

    @property
    def path(self) -> str:
        """Its name: the queue's for the default exchange, else ``exchange/routing_key``."""
        if not self.exchange:
            return self.routing_key
        return f"{self.exchange}/{self.routing_key}" if self.routing_key else self.exchange


def as_it_is(entity: Entity) -> Entity:
    """The entity whose health another one shares, on a broker where none does."""
    return entity


@dataclass(frozen=True)
class Declaration:
    """One call of a channel's declaring method, with the arguments that matter later."""

    operation: str
    arguments: dict[str, Any] = field(hash=False)

    @property
    def name(self) -> str:
        """What is declared: the queue or exchange; for a binding, its target."""
        key = "queue" if self.operation.startswith("queue") else "exchange"
        if self.operation == "exchange_bind":
            key = "destination"
        return str(self.arguments.get(key) or "")

    @property
    def is_question(self) -> bool:
        """It only asks whether the thing is there."""
        return bool(self.arguments.get("passive"))

    @property
    def key(self) -> DeclarationKey:
        """What it is about: the queue or exchange, or the binding with all that it matches by."""
        if not self.operation.endswith("_bind"):
            return (self.operation, self.name)
        matched = repr(self.arguments.get("arguments") or {})  # a headers exchange has nothing else
        return (self.operation, self.name, _source_of(self), _routing_key_of(self), matched)

    @property
    def is_lasting(self) -> bool:
        """Whether the thing outlives the connection that declares it: reply queues and the like do not."""
        if self.operation == "exchange_declare":
            return bool(self.name)
        return not (
            self.arguments.get("exclusive")
            or self.arguments.get("auto_delete")
            or not self.name
            or "x-expires" in (self.arguments.get("arguments") or {})
        )

    @property
    def is_reply_queue(self) -> bool:
        """A queue for answers that the broker keeps, over a restart too, until a consumer has come and gone."""
        arguments = self.arguments
        is_kept = arguments.get("durable") and arguments.get("auto_delete") and not arguments.get("exclusive")
        return self.operation == "queue_declare" and bool(self.name and is_kept)


class DeclarationBook:
    """The lasting declarations made through one pairing, by what they declare."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exchanges: dict[str, Declaration] = {}
        self._queues: dict[str, Declaration] = {}
        self._bindings: dict[str, dict[DeclarationKey, Declaration]] = {}
        self._reply_queues: dict[str, Declaration] = {}

    def note(self, operation: str, arguments: dict[str, Any]) -> Declaration:
        """Remember a declaration if it is a lasting one, and more than a question (``passive``)."""
        kept = {key: value for key, value in arguments.items() if key not in _NOT_CARRIED}
        declaration = Declaration(operation, kept)
        if arguments.get("passive"):
            return Declaration(operation, {**kept, "passive": True})
        if declaration.is_lasting:
            with self._lock:
                self._keep(declaration)
        elif declaration.is_reply_queue:
            with self._lock:
                self._keep_reply_queue(declaration)
        return declaration

    def _keep_reply_queue(self, declaration: Declaration) -> None:
        queues = self._reply_queues
        queues.pop(declaration.name, None)
        queues[declaration.name] = declaration
        if len(queues) > REPLY_QUEUES:
            del queues[next(iter(queues))]

    def _keep(self, declaration: Declaration) -> None:
        if declaration.operation == "exchange_declare":
            self._exchanges[declaration.name] = declaration
        elif declaration.operation == "queue_declare":
            self._queues[declaration.name] = declaration
        else:
            self._bindings.setdefault(_source_of(declaration), {})[declaration.key] = declaration

    def is_transient(self, exchange: str) -> bool:
        """Whether an exchange was declared as one that the broker itself forgets when it restarts."""
        declared = self._exchanges.get(exchange)
        return declared is not None and declared.arguments.get("durable") is False

    def exchange(self, name: str) -> Declaration | None:
        """How an exchange was declared."""
        return self._exchanges.get(name)

    def forget_queue(self, name: str) -> None:
        """It was deleted on purpose: nobody may declare it again for the application."""
        with self._lock:
            self._queues.pop(name, None)
            self._reply_queues.pop(name, None)
            self._drop_bindings(lambda source, binding: binding.operation == "queue_bind" and binding.name == name)

    def forget_exchange(self, name: str) -> None:
        """It was deleted on purpose."""
        with self._lock:
            self._exchanges.pop(name, None)
            self._bindings.pop(name, None)
            self._drop_bindings(lambda source, binding: binding.operation == "exchange_bind" and binding.name == name)

    def forget_binding(self, queue: str, exchange: str, routing_key: str) -> None:
        """The queue was unbound on purpose."""
        with self._lock:
            self._drop_bindings(
                lambda source, binding: (
                    source == exchange
                    and (binding.operation, binding.name) == ("queue_bind", queue)
                    and _routing_key_of(binding) == routing_key
                )
            )

    def _drop_bindings(self, is_gone: Callable[[str, Declaration], bool]) -> None:
        for source, bindings in self._bindings.items():
            for key in [key for key, binding in bindings.items() if is_gone(source, binding)]:
                del bindings[key]

    def lasting(self) -> list[Declaration]:
        """All of it, in an order in which it can be declared."""
        with self._lock:
            bindings = [each for of_one in self._bindings.values() for each in of_one.values()]
            return [*self._exchanges.values(), *self._queues.values(), *bindings]

    def queue_of(self, entity: Entity) -> Entity:
        """The one queue to which an exchange leads all messages of a routing key; else the entity as it is."""
        exchange, routing_key = entity
        declared = self._exchanges.get(exchange) if exchange else None
        if declared is None or (declared.arguments.get("type") or "direct") != "direct":
            return entity
        with self._lock:
            bindings = [
                each for each in self._bindings.get(exchange, {}).values() if _routing_key_of(each) == routing_key
            ]
        ends = {(each.operation, each.name) for each in bindings}
        if len(ends) != 1:
            return entity
        [(operation, name)] = ends
        return Entity("", name) if operation == "queue_bind" else entity

    def queues_for(self, entity: Entity) -> list[str]:
        """The queues that a message to an entity goes to, as far as it is known here what is bound to what."""
        found: dict[str, None] = {}
        with self._lock:
            self._follow(entity, found, set())
        return list(found)

    def _follow(self, entity: Entity, found: dict[str, None], seen: set[Entity]) -> None:
        exchange, routing_key = entity
        if entity in seen:  # exchanges may be bound in a circle
            return
        seen.add(entity)
        if not exchange:
            found[routing_key] = None
            return
        declared = self._exchanges.get(exchange)
        type = "direct" if declared is None else str(declared.arguments.get("type") or "direct")
        for binding in self._bindings.get(exchange, {}).values():
            if _leads_on(type, _routing_key_of(binding), routing_key):
                is_queue = binding.operation == "queue_bind"
                self._follow(
                    Entity("" if is_queue else binding.name, binding.name if is_queue else routing_key), found, seen
                )

    def for_entity(self, entity: Entity) -> list[Declaration]:
        """What has to exist for a message to this entity to arrive, in the order in which to declare it."""
        needed: list[Declaration] = []
        with self._lock:
            self._collect(entity, needed, {})
        return needed

    def for_reply(self, queue: str) -> list[Declaration]:
        """What has to exist for an answer to a message to arrive (``rpc://``): a broker drops what has no queue."""
        declared = self._reply_queues.get(queue)
        return [declared] if declared is not None else []

    def needed_by(self, declaration: Declaration) -> list[Declaration]:
        """What has to be there before: the two ends of a binding, and what a question is about."""
        exchanges, queues = self._exchanges, self._queues
        if declaration.operation == "queue_bind":
            ends = [exchanges.get(_source_of(declaration)), queues.get(declaration.name)]
        elif declaration.operation == "exchange_bind":
            ends = [exchanges.get(_source_of(declaration)), exchanges.get(declaration.name)]
        elif declaration.operation == "exchange_declare" and declaration.is_question:
            ends = [exchanges.get(declaration.name)]
        else:
            ends = []
        return [end for end in ends if end is not None]

    def _collect(self, entity: Entity, needed: list[Declaration], known: dict[Entity, bool]) -> bool:
        """Add what an entity needs; False if nothing of it is known, so that a binding to it is of no use."""
        if entity in known:
            return known[entity]
        known[entity] = True  # for now: exchanges may be bound in a circle
        exchange, routing_key = entity
        declared = self._exchanges.get(exchange) if exchange else self._queues.get(routing_key)
        if declared is not None:
            needed.append(declared)
        is_of_use = declared is not None
        direct = declared is not None and (declared.arguments.get("type") or "direct") == "direct"
        for binding in self._bindings.get(exchange, {}).values() if exchange else ():
            if direct and _routing_key_of(binding) != routing_key:
                continue
            is_queue = binding.operation == "queue_bind"
            target = Entity("", binding.name) if is_queue else Entity(binding.name, routing_key)
            if self._collect(target, needed, known):
                needed.append(binding)
                is_of_use = True
        known[entity] = is_of_use
        return is_of_use


def _leads_on(type: str, bound: str, routing_key: str) -> bool:
    """Whether an exchange of a type sends a message over a binding. What a headers exchange does is not known here."""
    if type == "fanout":
        return True
    if type == "direct":
        return bound == routing_key
    return type == "topic" and _matches(bound.split("."), routing_key.split("."))


def _matches(pattern: list[str], words: list[str]) -> bool:
    """AMQP 0-9-1: ``*`` is one word, ``#`` any number of them."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])


def _source_of(binding: Declaration) -> str:
    key = "exchange" if binding.operation == "queue_bind" else "source"
    return str(binding.arguments.get(key) or "")


def _routing_key_of(binding: Declaration) -> str:
    return str(binding.arguments.get("routing_key") or "")


def encode_declarations(declarations: Iterable[Declaration]) -> str:
    """Declarations as one line of JSON, for a message header."""
    return str(dumps([[each.operation, each.arguments] for each in declarations]))


def decode_declarations(text: str) -> list[Declaration]:
    """The declarations in a header.

    Raises:
        MalformedBacklogMessage: the text is not what :func:`encode_declarations` writes.
    """
    try:
        declarations = [Declaration(str(operation), arguments) for operation, arguments in loads(text)]
    except Exception as exc:  # Kombu's decoders of dates, numbers and the like raise whatever they meet
        raise MalformedBacklogMessage("MalformedDeclarations", f"the declarations cannot be read: {exc}") from exc
    for each in declarations:
        if each.operation not in OPERATIONS or not isinstance(each.arguments, dict):
            raise MalformedBacklogMessage("MalformedDeclarations", f"{each.operation!r} is not a declaration")
    return declarations
