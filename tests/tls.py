"""What speaks TLS in front of a PostgreSQL server that was built without it, as the one from the PyPI package was."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


def make_certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """A certificate that signs itself, for ``host``, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / f"{host}.crt", folder / f"{host}.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return certificate, secret


class Front:
    """Listens on 127.0.0.1, agrees on TLS as PostgreSQL does, and passes what is said on to the server's Unix socket.
    Without a certificate it says that it has no TLS. ``encrypted`` counts the connections that were.
    """

    def __init__(self, folder: Path, certificate: tuple[Path, Path] | None) -> None:
        self._server = str(folder / ".s.PGSQL.5432")
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*certificate)
        self.encrypted = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._writers: list[asyncio.StreamWriter] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        listening = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = listening.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end(listening))

    async def _end(self, listening: asyncio.Server) -> None:
        listening.close()
        for writer in self._writers:
            with suppress(AttributeError):  # one that is closed already, in Python before 3.11.3
                writer.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        closed = (writer.wait_closed() for writer in self._writers)
        await asyncio.gather(*tasks, *closed, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(OSError, EOFError, ssl.SSLError):
            first = await reader.readexactly(8)
            while (said := struct.unpack("!II", first))[1] in (_SSL_REQUEST, _GSS_REQUEST):
                tls = self._tls if said[1] == _SSL_REQUEST else None
                writer.write(b"N" if tls is None else b"S")
                await writer.drain()
                if tls is not None:
                    await writer.start_tls(tls)
                    self.encrypted += 1
                first = await reader.readexactly(8)
            there, here = await asyncio.open_unix_connection(self._server)
            self._writers.append(here)
            here.write(first)
            await asyncio.gather(_pass_on(reader, here), _pass_on(there, writer))
        writer.close()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()
