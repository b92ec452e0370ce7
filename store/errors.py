"""What can go wrong in a store."""

from __future__ import annotations


class StoreError(Exception):
    """Any error of a store; the message names what was wrong and what to do."""


class StoreLockedError(StoreError):
    """Another process has the store."""


class RecoveryStoppedError(StoreError):
    """Whoever was told of the scan's progress wants no more of it."""


class StoreReadOnlyError(StoreError):
    """A flush failed or the store is closed: nothing can be appended."""


class StoreDamagedError(StoreError):
    """A file of the store cannot be used as it is."""


class ForeignFolderError(StoreError):
    """A folder with files that are none of a store."""


class SecretError(StoreError):
    """A file with a secret that others can read."""


class RecordTooLargeError(StoreError):
    """A record does not fit a segment."""


class OffsetOutOfRangeError(StoreError):
    """An offset outside of the log, or not where a record begins."""


class OtherLogError(StoreError):
    """A log other than the one that was asked for."""


class RecordError(StoreError):
    """Bytes that are not a whole, correct record."""


class ErasedError(RecordError):
    """A record that was erased: nobody gets it."""
