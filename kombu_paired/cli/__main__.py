"""``python -m kombu_paired.cli`` is ``kombu-paired``."""

from __future__ import annotations

from kombu_paired.cli import main

if __name__ == "__main__":
    main(prog_name="kombu-paired")
