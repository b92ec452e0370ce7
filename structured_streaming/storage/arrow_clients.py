"""Arrow's own clients of object stores: with what datasets read the files of a table there.

None is written in Python, as deltalake's is. Of such a one Arrow's threads wait for the interpreter to say what went wrong,
while the interpreter waits for them: a reading of a file that is gone hung for ever, one time in three hundred. And they let
go of its files when a reading has returned: a process that ended then was aborted.
"""

from __future__ import annotations

import functools
import os
from typing import Any
from urllib.parse import urlsplit

_AZURE_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY")
_AZURE_TOKENS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")


def arrow_client(uri: str, connect_s: float, request_s: float) -> Any:
    """The file system of a folder's URL, whose names are those below the URL. Credentials come from the environment."""
    from pyarrow.fs import SubTreeFileSystem

    parts = urlsplit(uri)
    key = parts.path.strip("/")
    if parts.scheme == "s3":
        client, bucket = _s3(os.environ.get("AWS_ENDPOINT_URL", ""), connect_s, request_s), parts.netloc
    elif parts.scheme == "gs":
        client, bucket = _gcs(), parts.netloc
    elif parts.scheme == "abfss":
        bucket, _, host = parts.netloc.rpartition("@") if "@" in parts.netloc else (parts.netloc, "", "")
        account = host.partition(".")[0] or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        client = _azure(account, _first(_AZURE_KEYS), _first(_AZURE_TOKENS))
    else:
        raise ValueError(f"{uri}: Arrow has no client for {parts.scheme}://")
    return SubTreeFileSystem(f"{bucket}/{key}" if key else bucket, client)


def _first(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


@functools.lru_cache(maxsize=4)
def _s3(endpoint: str, connect_s: float, request_s: float) -> Any:
    from pyarrow.fs import S3FileSystem

    at = urlsplit(endpoint)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return S3FileSystem(
        endpoint_override=at.netloc or None,
        scheme=at.scheme or "https",
        region=region,
        connect_timeout=connect_s,
        request_timeout=request_s,
    )


@functools.lru_cache(maxsize=1)
def _gcs() -> Any:
    from pyarrow.fs import GcsFileSystem

    return GcsFileSystem()


@functools.lru_cache(maxsize=4)
def _azure(account: str, key: str | None, token: str | None) -> Any:
    from pyarrow.fs import AzureFileSystem

    return AzureFileSystem(account, account_key=key, sas_token=None if key else token)
