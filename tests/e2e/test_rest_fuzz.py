"""The OpenAPI document fuzzed: nothing that is asked for fails by a mistake, and answers are as the document says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import hypothesis.strategies as st
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from holdfast.api.rest._endpoints import ENDPOINTS
from holdfast.api.rest._openapi import document

from .rest import Client, Place, Server

DOCUMENT = schemathesis.openapi.from_dict(document(ENDPOINTS))
OPERATIONS: dict[str, Any] = {
    f"{operation.method.upper()} {operation.path}": operation
    for operation in (cast("Any", result).ok() for result in DOCUMENT.get_all_operations())
    if not operation.path.endswith("/events")  # (it does not end by itself)
}
CHECKS = [not_a_server_error, response_schema_conformance, content_type_conformance]
EXAMPLES = 10


class World:
    """A server with something to ask for."""

    def __init__(self, place: Place, server: Server) -> None:
        self.server = server
        self.client: Client = server.client(place.token())
        path = place.directory("shop", a="1", b="2")
        self.client.post("/api/exports", {"name": "shop", "path": str(path), "project": "p", "mode": "production"})
        first = self.client.post("/api/exports/shop/checkpoint", {"label": "first"})["checkpoint_id"]
        (path / "a").write_text("changed")
        second = self.client.post("/api/exports/shop/checkpoint")["checkpoint_id"]
        self.known = {"name": "shop", "project": "p", "id": first, "a": first, "b": second}
        self.known |= {"promotion": "0" * 16, "reapply": "0" * 32}
        self.known["session"] = self.client.post("/api/exports/shop/sessions")["id"]
        self.known["snapshot"] = self.client.post("/api/exports/shop/snapshots", {"provider": "copy"})["id"]
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {self.client.token}"

    def close(self) -> None:
        """Nothing was a mistake."""
        self.session.close()
        assert not [line for line in self.server.logged() if "exception" in line]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    place = Place(tmp_path_factory.mktemp("fuzz"))
    with place.server("--no-upkeep", serve_requests_per_minute="1000000") as server:
        world = World(place, server)
        yield world
        world.close()
        assert server.stop() == 0


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_that_is_asked_for_fails_by_a_mistake(world: World, name: str) -> None:
    operation = OPERATIONS[name]
    # What deletes the export, or what it stands on, would leave the others nothing to ask for.
    hits = st.just(False) if operation.method == "delete" else st.booleans()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=cast("list[HealthCheck]", list(HealthCheck)),
    )
    @given(case=operation.as_strategy(), hit=hits)
    def ask(case: Any, hit: bool) -> None:
        if hit and case.path_parameters:
            case.path_parameters.update({key: world.known[key] for key in case.path_parameters})
        answer = case.call(base_url=f"http://127.0.0.1:{world.server.port}", session=world.session)
        if answer.status_code != 501:
            case.validate_response(answer, checks=CHECKS)

    ask()
