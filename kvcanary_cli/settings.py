"""The environment, read in this module and nowhere else; `docs/environment.md` lists the variables."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvcanary_cli.errors import MissingError, UsageError

VARIABLES = (
    "KVCANARY_DEBUG",
    "KVCANARY_NO_PROGRESS",
    "KVCANARY_RECORD",
    "KVCANARY_RECORD_TOKENS",
    "KVCANARY_RECORD_MAX_MB",
    "KVCANARY_RECORD_QUEUE",
    "KVCANARY_RECORD_READ_ROWS",
    "KVCANARY_RECORD_REAL_KV",
    "KVCANARY_DUMP",
    "KVCANARY_DUMP_MAX",
    "KVCANARY_DUMP_KV",
    "NO_COLOR",
    "FORCE_COLOR",
    "TERM",
    "CUDA_VISIBLE_DEVICES",
    "NUMBA_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "TRITON_INTERPRET",
    "PYTHONPATH",
)
"""Every variable that changes what kvcanary does."""


def _get(variable: str) -> str | None:
    return os.environ.get(variable)


def is_debug() -> bool:
    """Whether an error shows its traceback."""
    return _get("KVCANARY_DEBUG") == "1"


def no_progress() -> bool:
    """Whether the user wants no progress on stderr."""
    return _get("KVCANARY_NO_PROGRESS") == "1"


def no_color() -> bool:
    """`NO_COLOR` set to anything but nothing."""
    return bool(_get("NO_COLOR"))


def force_color() -> bool:
    """`FORCE_COLOR` set; `0` counts as not set, and `NO_COLOR` wins."""
    return (_get("FORCE_COLOR") or "0") != "0" and not no_color()


def is_dumb_terminal() -> bool:
    """Whether the terminal understands no escape codes at all."""
    return (_get("TERM") or "").lower() in ("dumb", "unknown")


def cuda_visible_devices() -> str | None:
    """`CUDA_VISIBLE_DEVICES` as it stands; None if it is not set."""
    return _get("CUDA_VISIBLE_DEVICES")


def is_triton_interpreted() -> bool:
    """Whether Triton was told to run kernels in its interpreter."""
    return (_get("TRITON_INTERPRET") or "0").lower() in ("1", "true", "on", "yes", "y")


DEFAULT_QUEUE = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSettings:
    """How a recorder inside a serving engine records.

    Attributes:
        folder: where the traces go.
        tokens: whether token ids are written as they are or as salted hashes.
        max_bytes: size from which on a file is continued in the next; 0: never.
        queue: calls of the engine that may wait for the writer before forwards are dropped.
        read_rows: forwards after which the rows of a batch are read back whole; 0: never.
        real_kv: layer whose first bytes are hashed; None: no bytes are read.
    """

    folder: str
    tokens: Literal["hash", "plain"] = "hash"
    max_bytes: int = 0
    queue: int = DEFAULT_QUEUE
    read_rows: int = 0
    real_kv: int | None = None


def record_settings() -> RecordSettings | None:
    """How to record, None if nothing is to be recorded.

    Raises: UsageError for a value that means nothing.
    """
    folder = _get("KVCANARY_RECORD")
    if not folder:
        return None
    tokens = _get("KVCANARY_RECORD_TOKENS") or "hash"
    if tokens not in ("hash", "plain"):
        raise UsageError(f"KVCANARY_RECORD_TOKENS is {tokens!r}, hash or plain is expected")
    return RecordSettings(
        folder=folder,
        tokens="plain" if tokens == "plain" else "hash",
        max_bytes=(_number("KVCANARY_RECORD_MAX_MB", least=1) or 0) * 1_000_000,
        queue=_number("KVCANARY_RECORD_QUEUE", least=2) or DEFAULT_QUEUE,
        read_rows=_number("KVCANARY_RECORD_READ_ROWS", least=0) or 0,
        real_kv=_number("KVCANARY_RECORD_REAL_KV", least=0),
    )


DEFAULT_DUMPS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpSettings:
    """How a serving engine is dumped.

    Attributes:
        folder: where the dumps go.
        limit: dumps that one process writes at most.
        with_kv: whether the KV bytes that stamps cover are in them.
    """

    folder: str
    limit: int = DEFAULT_DUMPS
    with_kv: bool = False


def dump_settings() -> DumpSettings | None:
    """How to dump, None if nothing is to be dumped.

    Raises: UsageError for a value that means nothing.
    """
    folder = _get("KVCANARY_DUMP")
    if not folder:
        return None
    with_kv = _get("KVCANARY_DUMP_KV") or "0"
    if with_kv not in ("0", "1"):
        raise UsageError(f"KVCANARY_DUMP_KV is {with_kv!r}, 0 or 1 is expected")
    return DumpSettings(
        folder=folder,
        limit=_number("KVCANARY_DUMP_MAX", least=1) or DEFAULT_DUMPS,
        with_kv=with_kv == "1",
    )


def _number(variable: str, *, least: int) -> int | None:
    text = _get(variable)
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"{variable} is {text!r}, a whole number from {least} on is expected")
    return int(text)


def child_environment(*, interpret: bool, gpu_index: int | None = None) -> dict[str, str]:
    """The environment for a process of our own that runs or compiles kernels.

    Args:
        interpret: whether Triton interprets its kernels there; it decides that when it is imported.
        gpu_index: the one GPU the process sees, counted as `cuda:N` is counted here; None for all.
    """
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    if gpu_index is not None:
        visible = cuda_visible_devices()
        environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu_index] if visible else str(gpu_index)
    package_parent = str(Path(__file__).parent.parent)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package_parent, inherited)))
    return environment


def prepare_numba_cache() -> str | None:
    """Make sure that Numba can keep compiled code; call before numba is imported.

    Numba keeps it beside the source, or under the user's cache folder. Where neither can be written (a
    read-only install, a container without a home), a folder under the system's temporary one is used.

    Returns: a sentence about the fallback, None when Numba's own choice works.
    Raises: MissingError where no folder can be written.
    """
    chosen = _get("NUMBA_CACHE_DIR")
    package = Path(__file__).parent
    if chosen:
        if _is_writable(Path(chosen)):
            return None
    elif all(_is_writable(package / part / "__pycache__") for part in ("kernels", "ledger")) or _is_writable(
        _user_cache() / "numba"
    ):
        return None
    folder = _temporary_cache("numba", "NUMBA_CACHE_DIR")
    os.environ["NUMBA_CACHE_DIR"] = folder
    if "numba" in sys.modules:
        # numba copied the variable when it was imported
        sys.modules["numba"].config.CACHE_DIR = folder
    problem = f"{chosen} can't" if chosen else "neither the package nor ~/.cache can"
    return f"{problem} be written, compiled code is kept in {folder}"


def prepare_triton_cache() -> str | None:
    """The same for Triton, which keeps its kernels under the home folder; call before triton is imported."""
    chosen = _get("TRITON_CACHE_DIR")
    folder = Path(chosen) if chosen else Path(_get("TRITON_HOME") or _home()) / ".triton" / "cache"
    if _is_writable(folder):
        return None
    fallback = _temporary_cache("triton", "TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = fallback
    return f"{folder} can't be written, compiled kernels are kept in {fallback}"


def _home() -> str:
    return os.path.expanduser("~")


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path(_home()) / "Library" / "Caches"
    return Path(_home()) / ".cache"


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in `folder`, or the folder itself can be made, without making it."""
    for place in (folder, *folder.parents):
        if place.exists():
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False


def _temporary_cache(tool: str, variable: str) -> str:
    """A folder of this user under the temporary one, the same in each run so that code is found again.

    The caches hold pickled code: a folder that somebody else made, or can write to, is never used.
    """
    try:
        owner = os.getuid() if hasattr(os, "getuid") else 0
        folder = Path(tempfile.gettempdir()) / f"kvcanary-{tool}-{owner}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            info = folder.lstat()
            is_own = stat.S_ISDIR(info.st_mode) and info.st_uid == owner and not info.st_mode & 0o022
            if not is_own or not _is_writable(folder):
                return tempfile.mkdtemp(prefix=f"kvcanary-{tool}-")
        return str(folder)
    except OSError as error:
        raise MissingError(
            f"no folder can be written for the code that {tool} compiles: {error.strerror or error}",
            hint=f"set `{variable}` to a folder that can be written",
        ) from error
