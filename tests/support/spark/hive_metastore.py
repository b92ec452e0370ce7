"""A Hive metastore of pyspark's own jars, with a Derby database, on a free port; and Spark's configuration for it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from lakebroker_testing.ports import free_ports, is_open
from lakebroker_testing.programs import until_ready

_SITE = """<configuration>
<property><name>javax.jdo.option.ConnectionURL</name><value>jdbc:derby:;databaseName={folder}/database;create=true</value></property>
<property><name>datanucleus.schema.autoCreateAll</name><value>true</value></property>
<property><name>hive.metastore.schema.verification</name><value>false</value></property>
<property><name>hive.async.log.enabled</name><value>false</value></property>
<property><name>hive.metastore.warehouse.dir</name><value>file://{folder}/warehouse</value></property>
</configuration>
"""


@contextmanager
def hive_metastore(folder: Path) -> Iterator[Path]:
    """Serves the port of 127.0.0.1 that is named in the folder it yields, which is for SPARK_CONF_DIR."""
    port = free_ports(1)[0]
    for name in ("hive", "spark"):
        (folder / name).mkdir(parents=True)
    (folder / "hive" / "hive-site.xml").write_text(_SITE.format(folder=folder))
    (folder / "spark" / "spark-defaults.conf").write_text(
        "spark.sql.catalogImplementation hive\n"
        f"spark.hadoop.hive.metastore.uris thrift://127.0.0.1:{port}\n"
        f"spark.sql.warehouse.dir file://{folder}/warehouse\n"
    )
    jars = Path(pyspark.__file__).parent / "jars"
    command = [
        "java",
        "-XX:TieredStopAtLevel=1",
        "-Xmx256m",
        f"-Dderby.stream.error.file={folder}/derby.log",
        "-cp",
        f"{folder}/hive:{jars}/*",
        "org.apache.hadoop.hive.metastore.HiveMetaStore",
        "-p",
        str(port),
    ]
    with (folder / "metastore.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        until_ready(
            "the Hive metastore", process, folder / "metastore.log", lambda: is_open("127.0.0.1", port)
        )
        yield folder / "spark"
    finally:
        process.kill()
        process.wait()
