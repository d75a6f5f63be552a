"""What a batch puts into one list goes there in one command, and each message has the answer that is its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.brokers.redis.pipelines import Gathered, Once


class Pipeline(list):
    """The commands of a pipeline, and a server on which some lists refuse."""

    def lpush(self, name, *items):
        self.append(("lpush", name, items))

    def pexpire(self, name, milliseconds):
        self.append(("pexpire", name, milliseconds))

    def eval(self, text, count, *arguments):
        self.append(("eval", arguments[0], arguments[count:]))

    def answers(self, refusing):
        return [MemoryError(name) if name in refusing else 1 for _, name, _ in self]


names = st.sampled_from(["orders", "mails", "events"])
#: The lists that each message goes to, and whether one copy of it is enough.
batches = st.lists(st.tuples(st.lists(names, unique=True, max_size=3), st.booleans()), max_size=12)


def gather(batch):
    pipeline = Pipeline()
    gathered = Gathered(pipeline)
    for number, (lists, once) in enumerate(batch):
        gathered.next_message()
        target = Once(gathered, str, "token") if once else gathered
        for name in lists:
            target.lpush(name, f"item-{number}")
    gathered.add_up()
    return pipeline, gathered


@given(batches)
def test_each_list_gets_its_messages_in_order_and_in_one_command(batch):
    pipeline, _ = gather(batch)
    for name in ("orders", "mails", "events"):
        plain = [f"item-{number}" for number, (lists, once) in enumerate(batch) if name in lists and not once]
        pushed = [list(items) for command, key, items in pipeline if (command, key) == ("lpush", name)]
        assert pushed == ([plain] if plain else [])


@given(batches, st.sets(names))
def test_a_message_is_refused_by_a_list_of_its_own_and_by_no_other(batch, refusing):
    pipeline, gathered = gather(batch)
    refusals = gathered.refusals(pipeline.answers(refusing))
    assert [bool(each) for each in refusals] == [bool(refusing.intersection(lists)) for lists, _ in batch]


def test_a_list_is_there_before_it_is_said_when_it_ends():
    pipeline = Pipeline()
    gathered = Gathered(pipeline)
    for item in ("a", "b"):
        gathered.next_message()
        gathered.lpush("replies", item)
        gathered.pexpire("replies", 60_000)
    gathered.add_up()
    assert pipeline == [("lpush", "replies", ("a", "b")), ("pexpire", "replies", 60_000)]
    assert gathered.refusals([1, MemoryError()])[1] is not None
