"""``python -m kombu_paired.emulator``."""

from __future__ import annotations

from kombu_paired.emulator.server.command import emulator

if __name__ == "__main__":
    emulator(prog_name="kombu-paired emulator")
