"""The requests that come over AMQP.

To ``$cbs``: a token. To ``entity/$management``: peek, schedule, renew, settle by token, deferred messages, the state
of a session, the rules of a subscription.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Protocol

from kombu_paired.emulator.broker.errors import Condition, Refusal, missing
from kombu_paired.emulator.broker.messages import Outcome, delivery_of
from kombu_paired.emulator.broker.namespace import Namespace
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.server import rule_forms
from kombu_paired.emulator.server.tokens import Claims, Policies, path_of
from kombu_paired.emulator.wire.codec import Array
from kombu_paired.emulator.wire.envelope import Request, timestamp

__all__ = ("RequestDesk", "audience_of")

_OK, _EMPTY = 200, 204
_STATUSES = {
    "completed": Outcome.COMPLETE,
    "abandoned": Outcome.ABANDON,
    "defered": Outcome.DEFER,
    "suspended": Outcome.DEAD_LETTER,
}

Answer = tuple[int, str, Any]


class Client(Protocol):
    """Who asks.

    Attributes:
        claims: what the tokens that the client put allow it.
    """

    claims: Claims


class RequestDesk:
    """Answers requests.

    Arguments:
        find: the queue of a path, to receive from; a topic's inbox, where that is allowed.
        send: stores messages.
        namespace: which has the rules of subscriptions, and knows what there is.
        policies: the keys of the namespace.
    """

    def __init__(
        self,
        find: Callable[[str], Queue],
        send: Callable[[str, list[bytes]], list[int]],
        namespace: Namespace,
        policies: Policies,
    ) -> None:
        self._find = find
        self._send = send
        self._namespace = namespace
        self._policies = policies

    def put_token(self, client: Client, entity: str, request: Request) -> Answer:
        """A client shows a token to ``$cbs``."""
        token = request.body
        text = token.decode() if isinstance(token, bytes) else str(token)
        client.claims.add(entity, self._policies.grant(text, entity))
        if not self._namespace.has(entity):
            raise missing(str(request.application.get("name")))
        return 202, "Accepted", None

    def manage(self, client: Client, entity: str, request: Request) -> Answer:
        """A client asks the ``$management`` of an entity: status, its description, and the body of the answer."""
        operation = _operation(request)
        self._policies.require(client.claims, "Send" if "schedule" in operation else "Listen", entity)
        handler = _HANDLERS.get(operation)
        if handler is None:
            raise Refusal(Condition.NOT_IMPLEMENTED, f"the emulator does not have the operation {operation!r}")
        try:
            return handler(self, entity, request.body or {})
        except (KeyError, TypeError, AttributeError) as error:
            raise Refusal(Condition.ARGUMENT_ERROR, f"{operation}: malformed request, {error!r}") from error

    def _schedule(self, entity: str, body: dict[str, Any]) -> Answer:
        numbers = self._send(entity, [bytes(message["message"]) for message in body["messages"]])
        return _OK, "OK", {"sequence-numbers": Array(numbers)}

    def _cancel(self, entity: str, body: dict[str, Any]) -> Answer:
        self._find(entity).cancel_scheduled(body["sequence-numbers"])
        return _OK, "OK", None

    def _peek(self, entity: str, body: dict[str, Any]) -> Answer:
        found = self._find(entity).peek(body["from-sequence-number"], body["message-count"], body.get("session-id"))
        if not found:
            return _EMPTY, "No messages", None
        return _OK, "OK", {"messages": [{"message": delivery_of(message)} for message in found]}

    def _receive_deferred(self, entity: str, body: dict[str, Any]) -> Answer:
        queue, delete = self._find(entity), body.get("receiver-settle-mode") == 0
        locks = queue.receive_deferred(body["sequence-numbers"], delete, body.get("session-id"))
        messages = [
            {"lock-token": lock.token, "message": delivery_of(lock.message, None if delete else lock)} for lock in locks
        ]
        return _OK, "OK", {"messages": messages}

    def _renew(self, entity: str, body: dict[str, Any]) -> Answer:
        queue = self._find(entity)
        return _OK, "OK", {"expirations": Array(timestamp(queue.renew(token)) for token in body["lock-tokens"])}

    def _settle(self, entity: str, body: dict[str, Any]) -> Answer:
        outcome = _STATUSES.get(str(body["disposition-status"]))
        if outcome is None:
            raise Refusal(Condition.ARGUMENT_ERROR, f"no disposition is called {body['disposition-status']!r}")
        reason, description = body.get("deadletter-reason") or "", body.get("deadletter-description") or ""
        for token in body["lock-tokens"]:
            self._find(entity).settle(_token(token), outcome, reason, description)
        return _OK, "OK", None

    def _renew_session(self, entity: str, body: dict[str, Any]) -> Answer:
        return _OK, "OK", {"expiration": timestamp(self._find(entity).renew_session(body["session-id"]))}

    def _get_state(self, entity: str, body: dict[str, Any]) -> Answer:
        return _OK, "OK", {"session-state": self._find(entity).session_state(body["session-id"])}

    def _set_state(self, entity: str, body: dict[str, Any]) -> Answer:
        state = body.get("session-state")
        self._find(entity).set_session_state(body["session-id"], None if state is None else bytes(state))
        return _OK, "OK", None

    def _add_rule(self, entity: str, body: dict[str, Any]) -> Answer:
        self._namespace.add_rule(entity, body["rule-name"], rule_forms.from_amqp(body["rule-description"]))
        return _OK, "OK", None

    def _remove_rule(self, entity: str, body: dict[str, Any]) -> Answer:
        self._namespace.remove_rule(entity, body["rule-name"])
        return _OK, "OK", None

    def _list_rules(self, entity: str, body: dict[str, Any]) -> Answer:
        skip, top = int(body.get("skip") or 0), int(body.get("top") or 100)
        found = sorted(self._namespace.subscription_at(entity).rules.items())[skip : skip + top]
        if not found:
            return _EMPTY, "No rules", None
        return _OK, "OK", {"rules": [rule_forms.to_amqp(name, rule) for name, rule in found]}

    def _sessions(self, entity: str, body: dict[str, Any]) -> Answer:
        skip, top = int(body.get("skip") or 0), int(body.get("top") or 100)
        found = self._find(entity).session_ids()[skip : skip + top]
        if not found:
            return _EMPTY, "No sessions", None
        return _OK, "OK", {"skip": skip + len(found), "sessions-ids": found}


def audience_of(request: Request) -> str:
    """The path of the entity that a token is shown for; empty for the namespace."""
    return path_of(str(request.application.get("name") or ""))


def _operation(request: Request) -> str:
    """The name of the operation, which the SDK sends as bytes."""
    name = request.application.get("operation", "")
    return name.decode() if isinstance(name, bytes) else str(name)


def _token(value: Any) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))


_HANDLERS: dict[str, Callable[[RequestDesk, str, dict[str, Any]], Answer]] = {
    "com.microsoft:schedule-message": RequestDesk._schedule,
    "com.microsoft:cancel-scheduled-message": RequestDesk._cancel,
    "com.microsoft:peek-message": RequestDesk._peek,
    "com.microsoft:receive-by-sequence-number": RequestDesk._receive_deferred,
    "com.microsoft:renew-lock": RequestDesk._renew,
    "com.microsoft:update-disposition": RequestDesk._settle,
    "com.microsoft:renew-session-lock": RequestDesk._renew_session,
    "com.microsoft:get-session-state": RequestDesk._get_state,
    "com.microsoft:set-session-state": RequestDesk._set_state,
    "com.microsoft:get-message-sessions": RequestDesk._sessions,
    "com.microsoft:add-rule": RequestDesk._add_rule,
    "com.microsoft:remove-rule": RequestDesk._remove_rule,
    "com.microsoft:enumerate-rules": RequestDesk._list_rules,
}
