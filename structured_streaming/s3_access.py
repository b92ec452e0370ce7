"""What a Spark session of ours needs to read S3: Hadoop's file system for it, and the environment's words in Spark's.

A session that a platform provides has its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_SDK = "2.40.2"
"""Of Amazon's client. Hadoop asks for a bundle of all its parts, which is thirty times as large as those that are used."""
_PARTS = ("s3", "s3-transfer-manager", "sts")
_HADOOP = re.compile(r"hadoop-client-api-(.+)\.jar")


@dataclass(frozen=True, slots=True)
class S3Access:
    """Maven coordinates of jars, and settings of the session."""

    packages: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)


def s3_access(uri: str, environment: Mapping[str, str] = os.environ) -> S3Access:
    """For a lake at `uri`, as Spark takes it; nothing where that is not S3. Keys are read from the environment by the driver
    itself, and stand in no setting."""
    if not uri.startswith("s3a://"):
        return S3Access()
    settings = {"spark.jars.excludes": "software.amazon.awssdk:bundle"}
    if region := environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    if endpoint := environment.get("AWS_ENDPOINT_URL"):
        settings |= {
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": str(endpoint.startswith("https://")).lower(),
        }
    parts = [f"software.amazon.awssdk:{part}:{_SDK}" for part in _PARTS]
    return S3Access([f"org.apache.hadoop:hadoop-aws:{_hadoop()}", *parts], settings)


def _hadoop() -> str:
    """The version of Hadoop that comes with Spark."""
    import pyspark

    for jar in Path(pyspark.__file__).parent.joinpath("jars").iterdir():
        if found := _HADOOP.fullmatch(jar.name):
            return found[1]
    raise FileNotFoundError("pyspark comes without hadoop-client-api-*.jar; install it from PyPI")
