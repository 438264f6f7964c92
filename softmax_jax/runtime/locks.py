"""One run at a time in a directory."""

import contextlib
import datetime
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout, UnixFileLock


def lock_directory(directory: Path) -> FileLock:
    """Keeps every other process out of a directory until the lock is released or this process ends, however it ends.

    The lock's file lies beside the directory, so that it holds for the name, even where the directory is removed and
    made again; in a parent that this process cannot write, nobody can do that, and it lies within. It says who holds
    the lock. Raises ValueError, naming the holder, if another process is in there, and OSError if the file cannot be
    written. A file system without locks is warned of.
    """
    home = directory.resolve()
    home.parent.mkdir(parents=True, exist_ok=True)
    path = home.with_name(f".{home.name}.lock") if os.access(home.parent, os.W_OK) else home / "lock"
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        holder = path.read_text(errors="replace").strip()[:200] or "another process"
        raise ValueError(f"{directory} is in use by {holder}: let that end, or choose another --workdir") from None
    if isinstance(lock, UnixFileLock):  # other systems let nobody write into a locked file
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {now}\n")
    return lock


def unlock(lock: FileLock) -> None:
    """Lets others in, and removes the lock's file; whoever waits for that very file finds it gone and makes another."""
    if lock.is_locked:
        with contextlib.suppress(OSError):
            os.unlink(lock.lock_file)
        lock.release()
