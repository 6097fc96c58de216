"""Starts a server and checks it until it is healthy, or the time is over: run in the server's own box.

A program of its own, with the standard library alone, and so without `holdfast.processes`. It writes its result as one
JSON object to a descriptor: ``outcome`` (``healthy``, ``ended``, ``unhealthy``), ``exit_code`` (the server's, or the
last check's), ``detail`` (a sentence), ``checks`` (their number). It ends the server before it ends; the caller ends
remaining processes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

_GRACE_SECONDS = 3.0
_LEAST_SECONDS = 0.05
_SAID = 200


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


def main(fd: int, order: str) -> None:
    """``order`` is a JSON object: ``start`` and ``health`` (words; a single URL is checked by HTTP), ``seconds`` for
    becoming healthy, ``interval`` between checks, ``timeout`` of one check, and ``stays``: how long a server without a
    health check must run. ``{port}`` in a word is a free port, also in ``PORT``.
    """
    told = json.loads(order)
    port = str(_free_port())
    start, health = ([word.replace("{port}", port) for word in told[name]] for name in ("start", "health"))
    environment = dict(os.environ, PORT=port)
    _tell(f"starting {' '.join(start)} (PORT={port})" if start else "checking")
    server = None
    try:
        if start:
            try:
                server = subprocess.Popen(start, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
            except OSError as error:
                _say(fd, "ended", 127, f"{start[0]}: {error.strerror}", 0)
                return
        _say(fd, *_wait(server, health, environment, told))
    finally:
        if server is not None:
            _end(server)


def _wait(
    server: subprocess.Popen[bytes] | None, health: list[str], environment: dict[str, str], told: dict[str, float]
) -> tuple[str, int, str, int]:
    began = time.monotonic()
    deadline = began + told["seconds"]
    checks, code, detail = 0, 1, "it was not asked"
    while True:
        if server is not None and server.poll() is not None:
            ended = server.returncode if server.returncode >= 0 else 128 - server.returncode
            return "ended", ended, f"the server has ended with {ended}", checks
        now = time.monotonic()
        if not health:
            if server is None or now >= min(began + told["stays"], deadline):
                return "healthy", 0, "it goes on", checks
        elif now >= deadline:
            return "unhealthy", code, f"not well after {told['seconds']:g} s: {detail}", checks
        else:
            checks += 1
            code, detail = _check(health, environment, max(_LEAST_SECONDS, min(told["timeout"], deadline - now)))
            _tell(f"check {checks}: {detail}")
            if code == 0 and (server is None or server.poll() is None):
                return "healthy", 0, detail, checks
            if code == 0:
                continue
        time.sleep(min(told["interval"], max(_LEAST_SECONDS, deadline - time.monotonic())))


def _check(health: list[str], environment: dict[str, str], seconds: float) -> tuple[int, str]:
    """An exit code and a sentence."""
    if len(health) == 1 and health[0].startswith(("http://", "https://")):
        return _ask(health[0], seconds)
    try:
        done = subprocess.run(health, stdin=subprocess.DEVNULL, env=environment, timeout=seconds, check=False)
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return code, f"{health[0]} ended with {code}"
    except subprocess.TimeoutExpired:
        return 124, f"{health[0]} took longer than {seconds:.1f} s"
    except OSError as error:
        return 127, f"{health[0]}: {error.strerror}"


def _ask(url: str, seconds: float) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    try:
        with opener.open(url, timeout=seconds) as answer:
            return 0, f"{url} answered {answer.status}"
    except urllib.error.HTTPError as error:
        with error:
            return (0 if error.code < 400 else 1), f"{url} answered {error.code}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return 1, f"{url}: {str(reason)[:_SAID]}"
    except Exception as error:  # noqa: BLE001 - what a server answers may be anything at all
        return 1, f"{url}: {type(error).__name__}: {str(error)[:_SAID]}"


def _tell(text: str) -> None:
    sys.stdout.write(f"holdfast: {text}\n")
    sys.stdout.flush()


def _free_port() -> int:
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return any_socket.getsockname()[1]


def _end(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            server.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _say(fd: int, outcome: str, code: int, detail: str, checks: int) -> None:
    said = {"outcome": outcome, "exit_code": code, "detail": detail, "checks": checks}
    os.pwrite(fd, json.dumps(said).encode(), 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
