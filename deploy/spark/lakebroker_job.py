"""What spark-submit is given: a command of lakebroker, in the session that spark-submit configures.

spark-submit --master spark://master:7077 lakebroker_job.py reput --brokers broker-a:8081 --lake s3://bucket/lake
"""

from broker_gateway.cli.entry import run

run()
