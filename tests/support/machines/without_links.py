"""A library for LD_PRELOAD with which no file gets a second name (link, linkat), as on most FUSE mounts; built by the C compiler."""

from __future__ import annotations

from pathlib import Path

from lakebroker_testing.programs import output_of

_SOURCE = """#include <errno.h>
int link(const char *from, const char *to) { (void)from; (void)to; errno = EPERM; return -1; }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    (void)a; (void)from; (void)b; (void)to; (void)flags; errno = EPERM; return -1;
}
"""


def library(folder: Path) -> Path:
    """Builds it there."""
    source, made = folder / "without_links.c", folder / "without_links.so"
    source.write_text(_SOURCE)
    command = ["cc", "-shared", "-fPIC", "-o", str(made), str(source)]
    output_of(command)
    return made
