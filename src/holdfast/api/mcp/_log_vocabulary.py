"""The names in messages of the Model Context Protocol that the log may show."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import mcp_types as types
from pydantic import BaseModel

from holdfast.api._log_redaction import Vocabulary, vocabulary
from holdfast.api.mcp import _tools as tools


@cache
def protocol_vocabulary() -> Vocabulary:
    """All names in the protocol's own types (from the SDK) and in the schemas of the tools."""
    models = [each for each in vars(types).values() if isinstance(each, type) and issubclass(each, BaseModel)]
    fields = [(field.alias or name, field) for model in models for name, field in model.model_fields.items()]
    literals: list[Any] = [word for _, field in fields for word in get_args(field.annotation)]
    schemas = [each for tool in tools.TOOLS for each in (tools.schema(tool.takes), tools.schema(tool.answers))]
    words = {*tools.BY_NAME, "2.0", *(word for word in literals if isinstance(word, str))}
    return vocabulary(schemas, {name for name, _ in fields}, words)
