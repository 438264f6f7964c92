"""One run at a time in a directory."""

import datetime
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout, UnixFileLock


def lock_directory(directory: Path) -> FileLock:
    """Keeps every other process out of a directory until the lock is released or this process ends, however it ends.

    The lock's file says who holds it, and stays. Raises ValueError, naming the holder, if another process is in there,
    and OSError if the file cannot be written. A file system without locks is warned of.
    """
    path = directory / "lock"
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
