"""A second official client, Microsoft's for JavaScript: what is good for one alone may be a shared mistake.

It is run where ``node`` is. ``tests/run`` installs ``@azure/service-bus`` for it, beside ``.venv-tests``; one that is
elsewhere is found by ``NODE_PATH`` in the environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kombu_paired.emulator import Emulator

SCRIPT = Path(__file__).with_name("second_client.js")
INSTALLED = str(Path(__file__).parents[2] / ".node-tests" / "node_modules")
SECONDS = 120


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What the client saw of an emulator."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    environment = {**os.environ, "NODE_PATH": os.pathsep.join(filter(None, [os.environ.get("NODE_PATH"), INSTALLED]))}
    resolving = ["node", "-e", "require.resolve('@azure/service-bus')"]
    if subprocess.run(resolving, env=environment, capture_output=True).returncode:
        missing = "@azure/service-bus is not installed for node: tests/run installs it"
        pytest.fail(missing, pytrace=False) if os.environ.get("CI") else pytest.skip(missing)
    with Emulator(["plain", "seen", "talks?requires_session=true"], ["news:sub"]) as emulator:
        command = ["node", str(SCRIPT), emulator.connection_string]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_every_way_to_settle(seen: dict[str, Any]) -> None:
    assert seen["settling"] == {"hasId": True, "deliveryCount": 1, "reason": "tired"}


def test_batches_schedules_peeking_and_sizes(seen: dict[str, Any]) -> None:
    assert seen["looking"] == {"peeked": ["a", "b", "c"], "refusal": "MessageSizeExceeded"}


def test_sessions_and_their_state(seen: dict[str, Any]) -> None:
    assert seen["sessions"] == {"body": "hello", "state": "greeted"}


def test_rules_over_the_management_link(seen: dict[str, Any]) -> None:
    assert seen["rules"] == {
        "before": ["$Default"],
        "sql": "color = 'red'",
        "subject": "greetings",
        "found": ["red", "greetings"],
    }


def test_an_entity_that_does_not_exist(seen: dict[str, Any]) -> None:
    assert seen["missing"]["code"] == "MessagingEntityNotFound"
    assert "could not be found" in seen["missing"]["message"]
