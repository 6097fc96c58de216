"""The types in annotations of answers. Only type checkers and schemas load this module.

The values have other types, which `holdfast.model.json_encoder` converts by these names.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Path: TypeAlias = str
"""Bytes, by `holdfast.model.paths.display`."""
SystemPath: TypeAlias = str
"""A path as the system gave it in text (`os.fsdecode`), written as `Path`."""
PlainText: TypeAlias = str
r"""A text from the system: each byte that is not UTF-8 is ``\xHH``."""
Time: TypeAlias = str
"""Microseconds since 1970-01-01 UTC, in ISO 8601."""
NanoTime: TypeAlias = str
"""Nanoseconds since then, in ISO 8601 with microseconds."""
ContentHash: TypeAlias = str
"""A `Hash`, as ``blake3:`` and 32 hex digits."""
OctalPermissions: TypeAlias = str
"""The 12 permission bits, in four octal digits."""
OctalMode: TypeAlias = str
"""The type and the permissions, in six octal digits."""
Milliseconds: TypeAlias = float
"""To three places."""
Seconds: TypeAlias = int
"""Rounded."""

EntryKind = Literal["file", "directory", "link", "other"]
StepKind = Literal["command", "api", "ambient", "explicit"]
StepState = Literal["open", "done", "undone", "partly"]
Danger = Literal["delete", "overwrite", "rename_over", "limit"]
Edit = Literal["added", "modified", "deleted", "renamed", "metadata"]
MergeOutcome = Literal["clean", "needs_reapply"]
Rung = Literal["command", "queue", "structure", "text", "person"]
Forecast = Literal["applies", "declines", "asked"]
PromotionResult = Literal["", "promoted", "unchanged", "needs_reapply", "build_failed", "failed"]
PromotionIsolation = Literal["", "namespace", "none"]
PromotionPhase = Literal["building", "swapping", "swapped", "ended"]
