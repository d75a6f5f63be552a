"""Publish orders, a few each second: ``python publish.py [how many] [seconds between two]``."""

import sys
import time

from shop import send_receipt


def main(count: int = 1000, pause: float = 0.2) -> None:
    for order in range(1, count + 1):
        started = time.monotonic()
        send_receipt.delay(order)
        print(f"order {order}: published in {time.monotonic() - started:.3f} s", flush=True)
        time.sleep(pause)


if __name__ == "__main__":
    main(*(convert(text) for convert, text in zip((int, float), sys.argv[1:], strict=False)))
