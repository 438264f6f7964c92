"""Locks on files that end with the process that holds them, however it ends: a SIGKILL leaves none behind."""

import datetime
import errno
import os
import socket
import warnings
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def lock(handle: int, *, wait: bool) -> bool:
    """Locks an open file for this process; False if another holds it and this one is not to wait.

    Closing the file unlocks it. Raises OSError where the platform or the file system has no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOSYS, "this platform has no file locks")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


class DirectoryLock:
    """Keeps every other process out of a directory from its creation to `release`, or to the end of this process.

    Its file says who holds it. It stays when the lock ends: whoever deleted it could delete the lock of the next.
    Raises ValueError, naming the holder, if another process is in there, and OSError if the file cannot be written.
    Where a file system has no locks it warns, and keeps nobody out.
    """

    def __init__(self, directory: Path):
        path = directory / "lock"
        self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not self._taken(directory):
                raise ValueError(f"{directory} is in use by {_holder(path)}: let that end, or choose another --workdir")
            os.ftruncate(self._handle, 0)
            os.write(self._handle, f"process {os.getpid()} on {socket.gethostname()} since {_now()}\n".encode())
        except BaseException:
            self._close()
            raise

    def _taken(self, directory: Path) -> bool:
        assert self._handle is not None
        try:
            return lock(self._handle, wait=False)
        except OSError as error:
            warnings.warn(f"{directory} cannot be locked ({error.strerror}): start no second run in it", stacklevel=4)
            return True

    def release(self) -> None:
        """Lets the next process in; more than once does nothing."""
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            self._close()

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _holder(path: Path) -> str:
    """Who holds the lock, by its file, which is empty for the moment between locking and writing it."""
    return path.read_text(errors="replace").strip()[:200] or "another process"


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(" ", "seconds")
