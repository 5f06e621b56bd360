"""Whether a Ray cluster answers at an address. Ray itself tries for minutes, and says so in many lines."""

from __future__ import annotations

import os
import socket

from threespo_bench.errors import EngineError

LOGS = "look at Ray's own logs, in session_latest/logs under RAY_TMPDIR, by default /tmp/ray"
"""The advice where Ray itself failed."""
_SECONDS = 10.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client of HTTP/2 says first, with empty settings (RFC 9113, 3.4). Ray's services speak gRPC, which is HTTP/2."""
_SETTINGS = 4
"""The type of the frame that a server of HTTP/2 answers with, in its fourth byte."""


def check_ray_address(address: str, fix: str) -> None:
    """Raises EngineError, with this ``fix``, if nothing listens there, or something else than Ray.

    ``auto`` names a place only where RAY_ADDRESS is set; else Ray looks for a cluster on this machine, which takes no time.
    """
    place = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    host, _, port = place.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    where = f"cannot join the Ray cluster {address}" + ("" if place == address else f", which is RAY_ADDRESS={place}")
    if not 0 < int(port) < 65536:
        raise EngineError(f"{where}: there is no port {port}", fix=fix)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS) as connection:
            speaks = _encrypted() or _speaks_grpc(connection)
    except (OSError, ValueError) as error:  # ValueError: a host that no name can be
        raise EngineError(f"{where}: {error}", fix=fix) from error
    if not speaks:
        raise EngineError(f"{where}: what listens there is no Ray cluster", fix=fix)


def _encrypted() -> bool:
    """Ray then speaks to clients with its certificate only."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _speaks_grpc(connection: socket.socket) -> bool:
    connection.sendall(_PREFACE)
    head = b""
    while len(head) < 4 and (more := connection.recv(4 - len(head))):
        head += more
    return len(head) == 4 and head[3] == _SETTINGS
