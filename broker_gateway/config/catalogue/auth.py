"""RocketMQ 5.5.0's options of authentication and authorization (`AuthConfig`)."""

from __future__ import annotations

from broker_gateway.config.catalogue import verdicts as v
from broker_gateway.config.catalogue.row import Kind, Row

ROWS = (
    Row("configName", Kind.TEXT, None, v.DERIVED),
    Row("clusterName", Kind.TEXT, None, v.DERIVED),
    Row("authConfigPath", Kind.TEXT, None, v.DERIVED),
    Row("authenticationEnabled", Kind.BOOL, "false", v.AUTH_REFUSED),
    Row("authenticationProvider", Kind.TEXT, None, v.AUTH_REFUSED),
    Row("authenticationMetadataProvider", Kind.TEXT, None, v.AUTH_REFUSED),
    Row("authenticationStrategy", Kind.TEXT, None, v.AUTH_REFUSED),
    Row("authenticationWhitelist", Kind.TEXT, None, v.AUTH_REFUSED),
    Row("initAuthenticationUser", Kind.TEXT, None, v.AUTH_REFUSED, is_secret=True),
    Row("innerClientAuthenticationCredentials", Kind.TEXT, None, v.AUTH_REFUSED, is_secret=True),
    Row("authorizationEnabled", Kind.BOOL, "false", v.AUTH_REFUSED),
    Row("authorizationProvider", Kind.TEXT, None, v.AUTH_REFUSED),
    Row("authorizationMetadataProvider", Kind.TEXT, None, v.AUTH_REFUSED),
    Row("authorizationStrategy", Kind.TEXT, None, v.AUTH_REFUSED),
    Row("authorizationWhitelist", Kind.TEXT, None, v.AUTH_REFUSED),
    Row("migrateAuthFromV1Enabled", Kind.BOOL, "false", v.AUTH_REFUSED),
    Row("userCacheMaxNum", Kind.INT, "1000", v.AUTH),
    Row("userCacheExpiredSecond", Kind.INT, "600", v.AUTH),
    Row("userCacheRefreshSecond", Kind.INT, "60", v.AUTH),
    Row("aclCacheMaxNum", Kind.INT, "1000", v.AUTH),
    Row("aclCacheExpiredSecond", Kind.INT, "600", v.AUTH),
    Row("aclCacheRefreshSecond", Kind.INT, "60", v.AUTH),
    Row("statefulAuthenticationCacheMaxNum", Kind.INT, "10000", v.AUTH),
    Row("statefulAuthenticationCacheExpiredSecond", Kind.INT, "60", v.AUTH),
    Row("statefulAuthorizationCacheMaxNum", Kind.INT, "10000", v.AUTH),
    Row("statefulAuthorizationCacheExpiredSecond", Kind.INT, "60", v.AUTH),
)
