"""Variables that make programs run others, or be told by other files what to do.

These are named here, as most names that a command sets are its own. Where a whole family begins alike, the family is
named, so that a member that comes to it later is not taken for harmless.
"""

from __future__ import annotations

import re

_RUN = frozenset(
    (
        "ENV", "PROMPT_COMMAND", "IFS", "SHELLOPTS", "BASHOPTS", "PS4", "SHELL", "ZDOTDIR", "FPATH", "INPUTRC",
        "GCONV_PATH", "GETCONF_DIR", "PAGER", "MANPAGER", "MANOPT", "EDITOR", "VISUAL", "BROWSER", "LESS", "MORE",
        "SSH_ASKPASS", "SUDO_ASKPASS", "INFO_PRINT_COMMAND", "DC_ENV_ARGS", "HOME", "CURL_HOME", "WGETRC",
        "SYSTEM_WGETRC", "GNUPGHOME", "KRB5_CONFIG", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES",
        "GIT_SSH", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR",
        "GIT_ASKPASS", "GIT_PROXY_COMMAND", "GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_EXEC_PATH",
        "GIT_TEMPLATE_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_ALLOW_PROTOCOL", "GIT_PROTOCOL_FROM_USER", "RIPGREP_CONFIG_PATH", "BAT_PAGER", "BAT_OPTS",
        "BAT_CONFIG_PATH", "BAT_CONFIG_DIR", "ACKRC", "ACK_PAGER", "ACK_OPTIONS", "DELTA_PAGER", "DELTA_FEATURES",
        "TAR_OPTIONS", "RSYNC_RSH", "RSYNC_CONNECT_PROG", "RSH", "ZIPOPT", "UNZIP", "UNZIPOPT", "SYSTEMD_PAGER",
        "SYSTEMD_LESS", "SYSTEMD_EDITOR", "KUBECONFIG", "KUBE_EDITOR", "KUBECTL_EXTERNAL_DIFF", "DOCKER_CONFIG",
        "GH_CONFIG_DIR", "GH_PAGER", "GH_EDITOR", "GH_BROWSER", "GH_PATH", "PYTHONPATH", "PYTHONHOME",
        "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONBREAKPOINT", "NODE_OPTIONS", "NODE_PATH", "PERL5OPT", "PERL5LIB",
        "PERL5DB", "RUBYOPT", "RUBYLIB", "CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "JDK_JAVAC_OPTIONS",
        "_JAVA_OPTIONS", "GOFLAGS", "GOENV", "GOROOT", "GOTOOLDIR", "GOTOOLCHAIN", "CC", "CXX", "AR", "FC", "GCCGO",
        "PKG_CONFIG", "GCC_EXEC_PREFIX", "COMPILER_PATH", "CCC_OVERRIDE_OPTIONS", "RUSTC", "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER", "RUSTDOC", "CARGO_HOME", "ESBUILD_BINARY_PATH", "FFREPORT", "PIP_PYTHON",
        "UV_PYTHON",
    )
)  # fmt: skip
_FAMILIES = (
    "LD_", "DYLD_", "BASH_ENV", "BASH_FUNC_", "XDG_", "GIT_CONFIG", "GIT_TRACE", "LESS", "NPM_CONFIG_", "YARN_", "PIP_",
    "UV_", "POETRY_", "HELM_", "TF_CLI_", "TF_DATA_DIR", "TF_LOG_PATH", "TF_PLUGIN",
    "CARGO_BUILD_", "CARGO_TARGET_", "RUSTUP_", "MAGICK_", "HOLDFAST_",
)  # fmt: skip
_SHADOWS = ("LD_", "DYLD_", "BASH_ENV", "BASH_FUNC_")
"""With these, what runs under any name may be something else."""

_SWITCH = re.compile(r"[0-9]|true|false|yes|no|on|off")
"""A value that is no path and no command, for a member of a family that is not named for itself."""
_NOTHING = frozenset(("", "/dev/null"))
_USUAL = {
    **dict.fromkeys(
        ("PAGER", "MANPAGER", "GIT_PAGER", "BAT_PAGER", "GH_PAGER", "SYSTEMD_PAGER", "ACK_PAGER", "DELTA_PAGER"),
        re.compile(r"cat|less|more|true|:|/bin/true|less -[FRSX]+"),
    ),
    **dict.fromkeys(
        ("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GH_EDITOR", "KUBE_EDITOR", "SYSTEMD_EDITOR"),
        re.compile(r"cat|true|:|/bin/true|vi|vim|nano"),
    ),
    **dict.fromkeys(("GIT_ASKPASS", "SSH_ASKPASS"), re.compile(r"true|:|/bin/true|echo")),
    **dict.fromkeys(("LESS", "SYSTEMD_LESS", "MORE"), re.compile(r"-?[aeEfFgGiIJKLmMnNqQrRsSuUwWX]+")),
    **dict.fromkeys(("CC", "CXX"), re.compile(r"cc|gcc|clang|c\+\+|g\+\+|clang\+\+")),
    "AR": re.compile(r"ar|gcc-ar|llvm-ar"),
    "SHELL": re.compile(r"(/usr)?/bin/(sh|bash|dash|zsh|fish)"),
    "GOFLAGS": re.compile(r"-mod=(mod|vendor|readonly)|-buildvcs=false"),
    "GOTOOLCHAIN": re.compile(r"local|auto"),
    "IFS": re.compile("\n"),
    "LESSCHARSET": re.compile(r"[a-z0-9-]+"),
    "CARGO_TARGET_DIR": re.compile(r".*"),
}
"""Values with which a variable does nothing but what is usual."""


def runs(name: str, value: str) -> bool:
    """True if programs may run others, or do other things than usual, where the variable ``name`` has this value.

    ``value`` is a shape, as in `words`: what is not certain is none of the usual values.
    """
    if value in _NOTHING:
        return False
    usual = _USUAL.get(name)
    if usual is not None and usual.fullmatch(value):
        return False
    if name in _RUN:
        return True
    return name.upper().startswith(_FAMILIES) and not _SWITCH.fullmatch(value)


def shadows(name: str) -> bool:
    """True if, with the variable ``name``, the names of programs may mean others."""
    return name in ("IFS", "ENV") or name.startswith(_SHADOWS)
