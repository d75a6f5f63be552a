"""Found first on the path of a producer or worker of the battle: a wall clock that can be set from outside.

``BATTLE_CLOCK`` names a file with one double, the seconds by which ``time.time`` is wrong in this process.
"""

import mmap
import os
import struct
import time

if path := os.environ.get("BATTLE_CLOCK"):
    with open(path, "r+b") as file:
        _offset = mmap.mmap(file.fileno(), 8)
    _right_time, _read = time.time, struct.Struct("d").unpack_from

    def _set_time() -> float:
        return _right_time() + _read(_offset)[0]

    time.time = _set_time
