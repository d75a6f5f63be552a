"""The scripts that Redis runs, as files."""

from __future__ import annotations

from importlib.resources import files

from kombu_paired.brokers.redis import scripts
from kombu_paired.message import MAYBE_DUPLICATE

FOLDER = files(scripts.__name__)


def test_every_file_is_part_of_a_script():
    texts = "\n".join(each.text for each in vars(scripts).values() if isinstance(each, scripts.Script))
    written = [each for each in FOLDER.iterdir() if each.name.endswith(".lua")]
    assert len(written) == 8
    assert [each.name for each in written if each.read_text() not in texts] == []


def test_what_comes_back_is_marked_with_the_header_of_the_package():
    assert scripts.RECEIVE.text.count(f'"{MAYBE_DUPLICATE}"') == 2
