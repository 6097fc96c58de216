"""All endpoints, in the order of docs/reference/rest.md and of the OpenAPI document."""

from __future__ import annotations

from typing import Final

from litestar.handlers import HTTPRouteHandler

from holdfast.api.rest.routes import (
    checkpoints,
    exports,
    merges,
    promotions,
    server,
    sessions,
    snapshots,
    tree_changes,
)

ENDPOINTS: Final = tuple(
    endpoint
    for module in (exports, tree_changes, checkpoints, sessions, snapshots, merges, promotions, server)
    for endpoint in vars(module).values()
    if isinstance(endpoint, HTTPRouteHandler)
)
