"""What the log may show of the messages of the Model Context Protocol."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import mcp_types as types
from pydantic import BaseModel

from holdfast.api._log_redaction import Vocabulary, vocabulary
from holdfast.api.mcp import _tools as tools


@cache
def protocol_vocabulary() -> Vocabulary:
    """What the protocol, as the SDK has it, and the schemas of the tools name."""
    models = [each for each in vars(types).values() if isinstance(each, type) and issubclass(each, BaseModel)]
    fields = [(field.alias or name, field) for model in models for name, field in model.model_fields.items()]
    literals: list[Any] = [word for _, field in fields for word in get_args(field.annotation)]
    schemas = [each for tool in tools.TOOLS for each in (tools.schema(tool.takes), tools.schema(tool.answers))]
    words = {*tools.BY_NAME, "2.0", *(word for word in literals if isinstance(word, str))}
    return vocabulary(schemas, {name for name, _ in fields}, words)
