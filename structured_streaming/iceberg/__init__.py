"""The Iceberg mirror: a lake's tables, readable by any Iceberg client. The same Parquet files, Iceberg's metadata beside them.

It is derived from the Delta tables, never the other way round: nothing here or elsewhere reads a row, a progress or a decision
from it, and it may be deleted at any time. Of what it holds itself, `mirror.py` reads only what it needs in order to write the
next version for what changed; whatever it does not find as it left it, it makes anew from the Delta table.

    LAKE/_iceberg/lakebroker/TABLE/metadata/v7.metadata.json      a whole version of a table's mirror
                                            version-hint.text     the number of the newest, for readers
                                            snap-*.avro, *-m*.avro lists of manifests, and manifests: lists of files

| question | answer |
|---|---|
| where | beside the tables, in a folder whose name begins with `_`: no vacuum of a table looks there. One folder for all: one look tells whether there is a mirror, and removing it is one step |
| which catalog | none: files, as Iceberg's Hadoop tables have them. `LAKE/_iceberg` is a warehouse for Spark's `hadoop` catalog, a table's folder is what DuckDB takes, a metadata file what pyiceberg, Trino and others take |
| what makes a version | `vN.metadata.json` is put where there is none (`storage`), after all that it names is durable. Of two at once one has it, the other looks again. A crash before it leaves files that no version names, one behind it a hint that names the version before, which is whole |
| paths | Iceberg wants absolute ones, as this machine names them. A lake that was moved or copied has another location than its mirror says: the next run makes it anew |
| columns | the files carry no field ids: `schema.name-mapping.default` maps names, of elements, keys, values and fields too. Ids stay when columns are added; any other change of the schema makes the mirror anew, since old snapshots would be read by a mapping that is not theirs |
| order, partitions | none is claimed: files are sorted when they are written, and Iceberg's order of nulls is not promised to be Delta's |
| statistics | from Delta's (`data_files.py`); what could rule out a row that is there is left out |
| which version | the property `lakebroker.delta_version`, and the snapshot's summary at the time when it was made |
| one instant | of `reput_progress` an older version is shown than of the tables, pinned before them and put behind them: rows that it says are in the tables are there |
| cost | what the commits since the last version added and removed: their manifests are written or rewritten. All manifests are read where Delta's log tells no more what changed (a day), and all are written where the mirror is made anew |
| age | snapshots older than an hour are expired, since a vacuum may remove the files that they name (it keeps them an hour at least after they went); their metadata goes an hour after it was replaced. The mirror is brought up to date before a vacuum, never behind it |
| others who write to it | Iceberg has no read-only tables. `gc.enabled` is false: no client of Iceberg's removes files of the Delta tables. A version that somebody else made lacks our number: the next run makes the mirror anew behind it |
| a table that cannot be shown | one that was altered so that maintenance leaves it, or has files elsewhere: its mirror is removed, since it would be stale from then on, and that is said |

Versions, snapshots and manifests are pyiceberg's models and writers, below its catalogs: a catalog's `add_files` opens every Parquet
file (4 ms each on a local disk, a manifest entry of Delta's statistics 0.1 ms), cannot remove a file by its name, and names metadata
as no reader without a catalog finds it.
"""
