"""Choosing the provider for a workspace: the requested one, or the best one, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.snapshot.port import Capabilities, Mode, Provider

AUTOMATIC = "auto"
"""Instead of a provider's name: the best one."""


class ProviderChoice(NamedTuple):
    """The provider that is used."""

    provider: Provider
    capabilities: Capabilities
    reason: str
    """Why this one: a clause."""
    passed_over: tuple[str, ...] = ()
    """Providers that were skipped only because they cannot capture at this moment, each with the reason."""


def choose(
    providers: Sequence[Provider],
    wanted: str = AUTOMATIC,
    *,
    mode: Mode | None = None,
    ignored: bool = False,
    key: str | None = "snapshot.provider",
    detected: Sequence[Capabilities] | None = None,
) -> ProviderChoice:
    """Choose a provider: ``wanted`` by name, or the one with the highest score, the first of equals.

    It must offer ``mode``, and with ``ignored`` include ignored files. A provider that cannot capture at this moment is
    skipped, unless it is ``wanted``: then it refuses. ``key`` is the setting that names it; None: the caller does.
    ``detected`` are the providers' abilities, if the caller has them already. Raises `UnsupportedError` with the reason
    of each one.
    """
    found = [provider.detect() for provider in providers] if detected is None else detected
    reasons = [_lacking(capabilities, mode, wanted, ignored=ignored) for capabilities in found]
    able = [at for at, reason in enumerate(reasons) if reason is None and wanted in (AUTOMATIC, found[at].provider)]
    if not able:
        asked = [
            f"{capabilities.provider}: {reason}"
            for capabilities, reason in zip(found, reasons, strict=True)
            if wanted in (AUTOMATIC, capabilities.provider)
        ]
        reason = "; ".join(asked) or "there is none of that name"
        if wanted == AUTOMATIC:
            said, hint = (
                f"no provider of snapshots can be used here: {reason}",
                "docs/reference/snapshot.md says what each needs",
            )
        else:
            by = ", which was asked for," if key is None else f" ({key})"
            said, hint = f"the provider {wanted}{by} cannot be used here: {reason}", _instead(key, ignored=ignored)
        raise UnsupportedError(said, hint=hint, code="no_provider")
    best = max(able, key=lambda at: (found[at].score, -at))
    passed_over = tuple(
        f"{one.provider}: {one.not_now}"
        for one, reason in zip(found, reasons, strict=True)
        if one.not_now and reason == one.not_now
    )
    reason = (
        f"{key or 'the request'} names it" if wanted != AUTOMATIC else _reason([found[at] for at in able], found[best])
    )
    return ProviderChoice(providers[best], found[best], "; not ".join((reason, *passed_over)), passed_over)


def _instead(key: str | None, *, ignored: bool) -> str:
    """The advice if the named provider is unusable."""
    how = "name none" if key is None else f"set {key} to {AUTOMATIC}"
    for_ignored = ", of those that carry ignored files" if ignored else ""
    return (
        f"{how}, and the best one that can be is used{for_ignored}; `holdfast doctor` says which ones can be, and why"
    )


def _lacking(capabilities: Capabilities, mode: Mode | None, wanted: str, *, ignored: bool) -> str | None:
    """Why it cannot be used; None if it can."""
    if not capabilities.score:
        return "; ".join(capabilities.notes) or "it cannot be used here"
    if mode is not None and mode not in capabilities.modes:
        return f"it has no mode {mode}"
    if ignored and not capabilities.carries_ignored:
        return "it does not carry ignored files"
    if wanted == AUTOMATIC and capabilities.not_now:
        return capabilities.not_now
    return None


def _reason(able: Sequence[Capabilities], best: Capabilities) -> str:
    if len(able) == 1:
        return "it is the only one that can be used here"
    return f"its score, {best.score}, is the highest"
