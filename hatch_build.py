"""Builds the native part of the keeper into the wheel, where that can be done; see `native.build`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    """A build without it is a wheel for every machine; with it, one for this architecture."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built, or an editable install."""
        root = Path(self.root)
        specification = importlib.util.spec_from_file_location("native_build", root / "native" / "build.py")
        assert specification is not None
        assert specification.loader is not None
        native = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(native)
        is_editable = version == "editable"
        target = (
            root / "src" / "holdfast" / native.NAME if is_editable else Path(self.directory) / "native" / native.NAME
        )
        # (`make wheels` names the machine that the wheel is for, and the compiler of the same.)
        tag = os.environ.get("HOLDFAST_WHEEL", f"linux_{os.uname().machine}")
        if os.environ.get("HOLDFAST_NATIVE") == "0":
            return
        try:
            native.build(target, tuple(os.environ.get("HOLDFAST_CC", "").split()))
        except native.CannotBuildError as error:
            if "HOLDFAST_WHEEL" in os.environ:
                raise
            self.app.display_warning(f"without the native part of the keeper, which Python replaces: {error}")
            return
        if not is_editable:
            build_data["force_include"][str(target)] = f"holdfast/{native.NAME}"
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{tag}"
