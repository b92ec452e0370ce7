"""Property tests have no deadline: the first call of a compiled function compiles it."""

from hypothesis import HealthCheck, settings

settings.register_profile("lakebroker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lakebroker")
