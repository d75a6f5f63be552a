"""A report through a real Spark Connect server: the client is Python alone, and the tables are the truth."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from kombu_paired.pipeline.session import CONNECT_MODULES
from kombu_paired.simulation import FleetSettings, simulate
from kombu_paired.testing import free_port, spawn, stop_tree
from tests.pipeline.conftest import NO_COMPILATION
from tests.pipeline.truth import assert_is_truth
from tests.support.spark import require_spark


@pytest.fixture
def server(tmp_path):
    """The URL of a server that was started for the test."""
    require_spark()
    if not os.environ.get("CI"):
        for module in CONNECT_MODULES:
            pytest.importorskip(module)
    home, port = Path(pyspark.__file__).parent, free_port()
    [jar] = (home / "jars").glob("spark-connect_*.jar")
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": tmp_path / "local",
        "spark.sql.warehouse.dir": tmp_path / "warehouse",
        "spark.sql.shuffle.partitions": 1,
        **NO_COMPILATION,
    }
    command = [home / "bin" / "spark-submit", "--master", "local[2]", "--driver-memory", "1g"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", jar]
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}
    log = tmp_path / "server.log"
    process = spawn([str(each) for each in command], env=environment, log=log)
    try:
        wait_until_it_listens(process, port, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        stop_tree(process)


def wait_until_it_listens(process, port, log):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"the server does not listen: {log.read_text()[-2000:]}")


def test_a_report_through_a_server_is_the_truth(spark, server, tmp_path):
    journals, truth, out = (tmp_path / name for name in ("journals", "truth", "out"))
    simulate(FleetSettings(messages=2_000, garbage=0.01, copies=1), journals, truth)
    command = ["report", "--journal", journals, "--out", out, "--remote", server]
    made = subprocess.run(
        [sys.executable, "-m", "kombu_paired.cli", *map(str, command)], capture_output=True, text=True, timeout=600
    )
    assert made.returncode == 0, made.stderr
    assert "Warning" not in made.stderr
    assert " sent, " in made.stdout
    for name in ("messages", "outages", "quality"):
        [file] = truth.glob(f"truth-{name}.json*")
        assert_is_truth(spark, spark.read.parquet(str(out / name)), file)
    assert (out / "report.html").stat().st_size > 10_000
