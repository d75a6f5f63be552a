"""TLS behind the first bytes: the standard library's, fed by hand, because the first bytes are already read."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from kombu_paired.emulator.wire.ends import Speaker, Wire

__all__ = ("Certificate", "TlsLayer")


class Certificate:
    """A self-signed certificate for this run, made by the ``openssl`` program: Python cannot make one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "certificate.pem"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.path, folder / "key.pem")

    @classmethod
    def make(cls, host: str) -> Certificate:
        """A new one, good for this host and for localhost."""
        program = shutil.which("openssl")
        if program is None:
            raise FileNotFoundError(
                "https and amqps need a certificate, and making one needs the openssl program: install openssl, "
                "or use plain AMQP (UseDevelopmentEmulator=true) and give the administration client a transport "
                "that speaks http"
            )
        folder = Path(tempfile.mkdtemp(prefix="servicebus-emulator-"))
        names = {"DNS:localhost", "IP:127.0.0.1", ("IP:" if host.replace(".", "").isdigit() else "DNS:") + host}
        command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=" + ",".join(sorted(names))]
        command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise OSError(f"openssl made no certificate: {done.stderr.strip()[-300:]}")
        return cls(folder)

    def remove(self) -> None:
        """Forget it."""
        shutil.rmtree(self._folder, ignore_errors=True)


class TlsLayer:
    """Decrypts for the speaker inside, and encrypts what it writes. To the speaker it is the wire."""

    def __init__(self, wire: Wire, context: ssl.SSLContext, speaker: Callable[[TlsLayer], Speaker]) -> None:
        self._wire = wire
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shaken = False
        self._speaker = speaker(self)

    def feed(self, data: bytes) -> None:
        """Take what came in."""
        self._incoming.write(data)
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
            while plain := self._tls.read(65536):
                self._speaker.feed(plain)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._flush()
            self._wire.close()
            return
        self._flush()

    def write(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._wire.write(self._outgoing.read())

    def close(self) -> None:
        self._flush()
        self._wire.close()

    def abort(self) -> None:
        self._wire.abort()

    def waiting(self) -> int:
        return self._wire.waiting()

    def lost(self) -> None:
        """The client is gone."""
        self._speaker.lost()
