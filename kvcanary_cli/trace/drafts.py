"""Files that take their place when they are whole: a run that fails leaves what was there before."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from itertools import count

_numbers = count(1)
# what stands behind these names is somebody's open file: it can be written to, and not be replaced
_STREAM_FOLDERS = ("/dev/", "/proc/")


class Draft:
    """An open file beside `path` that replaces it with `keep`, and is gone with `drop`.

    What can't be replaced, such as a pipe or a device, is written in place. A link is followed, and what it leads to
    is replaced. Errors of the system come as they are.
    """

    def __init__(self, path: str) -> None:
        self._target = os.path.realpath(path)
        self._draft = self._target
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if mode is not None and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        if _is_replaceable(path, mode):
            folder = os.path.dirname(self._target)
            self._draft = os.path.join(folder, f".kvcanary.{os.getpid()}.{next(_numbers)}.part")
        else:
            self._target = self._draft = path
        try:
            self.file = open(self._draft, "wb")  # noqa: SIM115 - closed by keep and drop
        except PermissionError:
            if mode is None:
                raise
            # the folder takes no new file, the old one may be written to
            self._draft = self._target
            self.file = open(self._draft, "wb")  # noqa: SIM115
        if mode is not None and not self.is_in_place:
            with contextlib.suppress(OSError):
                os.chmod(self._draft, stat.S_IMODE(mode))

    @property
    def is_in_place(self) -> bool:
        """Whether what is written is already where it belongs."""
        return self._draft == self._target

    def keep(self) -> None:
        """Close the file and put it in its place."""
        self.file.close()
        if not self.is_in_place:
            os.replace(self._draft, self._target)

    def drop(self) -> None:
        """Close the file and forget it; what was written in place stays."""
        with contextlib.suppress(OSError):
            self.file.close()
        if not self.is_in_place:
            with contextlib.suppress(OSError):
                os.unlink(self._draft)


def _mode(path: str) -> int | None:
    """Kind and permissions of what is there; None for nothing."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _is_replaceable(path: str, mode: int | None) -> bool:
    if os.path.abspath(path).startswith(_STREAM_FOLDERS):
        return False
    return mode is None or stat.S_ISREG(mode)
