"""Counts of what the server does, as Prometheus reads them (text format 0.0.4)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.engine.exports.maintenance import State

_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)

Label = tuple[tuple[str, str], ...]


class Metrics:
    """For any thread. No name of a tenant, an export or a path is in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, list[float]] = {}
        self._events: dict[str, int] = {}
        self._bytes = [0, 0]
        self.in_flight = 0
        """Requests that are worked on; of the loop's thread alone."""

    def answered(self, route: str, method: str, status: int, seconds: float, received: int, sent: int) -> None:
        """A request was answered. ``route`` is its pattern, never its path."""
        with self._lock:
            key = route, method, status
            self._requests[key] = self._requests.get(key, 0) + 1
            row = self._seconds.setdefault(route, [0.0] * (len(_BUCKETS) + 2))
            row[bisect_left(_BUCKETS, seconds)] += 1
            row[-1] += seconds
            self._bytes[0] += received
            self._bytes[1] += sent

    def counted(self, event: str) -> None:
        """Count an event by its name: ``checkpoints``, ``auto_checkpoints``, …"""
        with self._lock:
            self._events[event] = self._events.get(event, 0) + 1

    def text(self, gauges: Mapping[str, float], states: Mapping[State, int]) -> str:
        """All of it. ``gauges`` by name; ``states``: how many exports are in which."""
        lines: list[str] = []
        with self._lock:
            requests = dict(self._requests)
            seconds = {route: list(row) for route, row in self._seconds.items()}
            events, (received, sent) = dict(self._events), self._bytes
        rows: Iterable[tuple[Label, float]] = (
            ((("route", route), ("method", method), ("status", str(status))), count)
            for (route, method, status), count in sorted(requests.items())
        )
        _put(lines, "holdfast_http_requests_total", "counter", "Requests that were answered.", rows)
        _head(lines, "holdfast_http_request_seconds", "histogram", "How long they took.")
        for route, row in sorted(seconds.items()):
            below = 0.0
            for limit, count in zip((*map(str, _BUCKETS), "+Inf"), row, strict=False):
                below += count
                lines.append(_line("holdfast_http_request_seconds_bucket", (("route", route), ("le", limit)), below))
            lines.append(_line("holdfast_http_request_seconds_sum", (("route", route),), row[-1]))
            lines.append(_line("holdfast_http_request_seconds_count", (("route", route),), below))
        _put(lines, "holdfast_http_received_bytes_total", "counter", "Bytes of bodies received.", [((), received)])
        _put(lines, "holdfast_http_sent_bytes_total", "counter", "Bytes of bodies sent.", [((), sent)])
        done = [((("what", name),), count) for name, count in sorted(events.items())]
        _put(lines, "holdfast_done_total", "counter", "Operations on exports.", done)
        kept = [((("state", name),), count) for name, count in sorted(states.items())]
        _put(lines, "holdfast_exports", "gauge", "Exports that this process sees to, by state.", kept)
        for name, value in sorted(gauges.items()):
            _put(lines, f"holdfast_{name}", "gauge", name.replace("_", " ").capitalize() + ".", [((), value)])
        return "\n".join(lines) + "\n"


def _head(lines: list[str], name: str, kind: str, meaning: str) -> None:
    lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _put(lines: list[str], name: str, kind: str, meaning: str, rows: Iterable[tuple[Label, float]]) -> None:
    _head(lines, name, kind, meaning)
    lines += [_line(name, label, value) for label, value in rows]


def _line(name: str, label: Label, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in label)
    return f"{name}{{{inside}}} {value:.15g}" if inside else f"{name} {value:.15g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
