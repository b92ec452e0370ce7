"""A host where one folder alone can be written to, as systemd and read-only containers leave it."""

from __future__ import annotations

from pathlib import Path

_SCRIPT = (
    'mount --bind "$0" "$0" && mount -o remount,ro,bind / '
    "&& { ! mountpoint -q /dev/shm || mount -o remount,ro,bind /dev/shm; } "  # a mount of its own
    '&& exec "$@"'
)


def read_only(writable: Path) -> list[str]:
    """A command's beginning, in namespaces of its own; `TMPDIR` is to be left out of its environment."""
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", _SCRIPT, str(writable)]
