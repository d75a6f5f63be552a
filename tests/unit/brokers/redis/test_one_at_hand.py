"""A connection at hand: the pool behind it is asked for what it alone knows how to do."""

from __future__ import annotations

import pytest

from kombu_paired.brokers.redis.connections import OneAtHand


class Connection:
    def __init__(self) -> None:
        self.ready = True
        self.to_be_made_anew = False
        self.re_authentications = 0

    def is_ready(self) -> bool:
        return self.ready

    def should_reconnect(self) -> bool:
        return self.to_be_made_anew

    def re_auth(self) -> None:
        self.re_authentications += 1


class Pool:
    """Lends the connection that was released last, made ready, as redis-py's does."""

    db = 3

    def __init__(self) -> None:
        self.idle: list[Connection] = []
        self.asked = 0

    def get_connection(self) -> Connection:
        self.asked += 1
        connection = self.idle.pop() if self.idle else Connection()
        connection.ready, connection.to_be_made_anew = True, False
        return connection

    def release(self, connection: Connection) -> None:
        self.idle.append(connection)


@pytest.fixture
def pool():
    return Pool()


def test_commands_one_after_the_other_ask_the_pool_once_and_renew_their_token(pool):
    drawer = OneAtHand(pool)
    first = drawer.get_connection()
    for _ in range(3):
        drawer.release(first)
        assert drawer.get_connection() is first
    assert (pool.asked, first.re_authentications) == (1, 3)


def test_a_connection_that_died_in_its_sleep_is_for_the_pool_to_make_ready(pool):
    drawer = OneAtHand(pool)
    first = drawer.get_connection()
    drawer.release(first)
    first.ready = False
    assert drawer.get_connection() is first
    assert first.ready
    assert pool.asked == 2


def test_so_is_one_that_is_to_be_made_anew(pool):
    drawer = OneAtHand(pool)
    first = drawer.get_connection()
    first.to_be_made_anew = True
    drawer.release(first)
    assert pool.idle == [first]
    assert drawer.get_connection() is first
    assert not first.to_be_made_anew


def test_a_second_one_at_the_same_time_is_the_pool_s(pool):
    drawer = OneAtHand(pool)
    first, second = drawer.get_connection(), drawer.get_connection()
    assert first is not second
    drawer.release(first)
    drawer.release(second)
    assert pool.idle == [second]
    assert drawer.get_connection() is first


def test_one_whose_token_the_server_refuses_is_not_lost_to_the_pool(pool):
    drawer = OneAtHand(pool)
    first = drawer.get_connection()

    def refuse() -> None:  # as redis-py does: it disconnects, and raises
        first.ready = False
        raise ConnectionError("refused")

    first.re_auth = refuse
    with pytest.raises(ConnectionError):
        drawer.release(first)
    assert drawer.get_connection() is first
    assert pool.asked == 2


def test_all_else_is_the_pool_s(pool):
    assert OneAtHand(pool).db == 3
