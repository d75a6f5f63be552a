"""The files of ``examples/spool`` say what the commands and the settings understand."""

from __future__ import annotations

import shlex
from configparser import ConfigParser

import pytest
import yaml

from kombu_paired.brokers.spool.address import SpoolAddress
from kombu_paired.cli import main
from tests.docs.reading import ROOT

EXAMPLE = ROOT / "examples" / "spool"


def unit() -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(EXAMPLE / "kombu-paired-syphon.service")
    return parser


def pods() -> dict:
    return yaml.safe_load((EXAMPLE / "sidecar.yaml").read_text())["spec"]


def require_command(words: list[str]) -> None:
    assert words[0].rsplit("/", 1)[-1] == "kombu-paired"
    command = main.get_command(main.make_context("kombu-paired", [], resilient_parsing=True), words[1])
    assert command is not None
    command.make_context(words[1], words[2:], resilient_parsing=True)


def test_the_service_runs_a_command_that_there_is():
    require_command(shlex.split(unit()["Service"]["ExecStart"]))


def test_the_service_may_write_where_its_spool_is():
    """``ProtectSystem=strict`` leaves it nothing but its own folder."""
    written = (EXAMPLE / "README.md").read_text()
    [url] = [line.partition("=")[2] for line in written.splitlines() if line.startswith("KOMBU_PAIRED_SECONDARY=")]
    folder = SpoolAddress.of(url).folder
    assert folder.startswith(f"/var/lib/{unit()['Service']['StateDirectory']}/")


@pytest.mark.parametrize("number", [0, 1])
def test_each_container_has_the_spool_on_the_volume(number):
    container = pods()["template"]["spec"]["containers"][number]
    url = next(each["value"] for each in container["env"] if each["name"] == "KOMBU_PAIRED_SECONDARY")
    [mount] = container["volumeMounts"]
    assert SpoolAddress.of(url).folder.startswith(mount["mountPath"] + "/")
    [claim] = pods()["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == mount["name"]


def test_the_sidecar_runs_a_command_that_there_is():
    require_command(pods()["template"]["spec"]["containers"][1]["args"])
