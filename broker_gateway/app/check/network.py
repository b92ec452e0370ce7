"""Ports, certificates, the token, name servers, the lake."""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from broker_gateway.api.remoting.ports import take_ports
from broker_gateway.app.check.finding import Finding, as_at_start, fail, ok, warn
from broker_gateway.app.grpc_server import check_transport, operators_certificate
from broker_gateway.app.other_ports import other_ports
from broker_gateway.auth.policy import TokenPolicy
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.registration import name_server_addresses
from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RemotingError
from broker_gateway.runtime.errors import StartError
from broker_gateway.runtime.ports import check_ports
from broker_gateway.transport.remoting.client import RemotingClient
from store.counting import counted

LAKE_S = 30.0
"""For the look at the lake."""
SOON = datetime.timedelta(days=30)
_T = TypeVar("_T")


def check_own_ports(config: GatewayConfig) -> list[Finding]:
    """Takes all at a time, as a start does, and gives them back."""
    try:
        remoting = take_ports(config)
    except StartError as error:
        return [fail("ports", str(error))]
    try:
        others = other_ports(config)
        shown = [f"{each.port_option} {each.port}" for each in others]
        value = ", ".join([f"listenPort {config.broker.listen_port}", *shown])
        return [as_at_start("ports", f"{value}: free", lambda: check_ports(others))]
    finally:
        remoting.close()


def check_access(config: GatewayConfig) -> Finding:
    """The token's file."""
    file = config.lake.lake_token_file
    try:
        TokenPolicy(file)
    except StartError as error:
        return fail("token", str(error))
    if file is None:
        return ok("token", "none: Log and Admin services answer this machine only")
    return ok("token", str(file))


def check_certificate(config: GatewayConfig, now: datetime.datetime) -> Finding:
    """The operator's, and until when it is good; the start takes one that has expired, clients do not."""
    try:
        check_transport(config)
        operators_certificate(config)
    except StartError as error:
        return fail("TLS", str(error))
    file = config.proxy.tls_cert_path
    if file is None:
        trial = config.proxy.tls_test_mode_enable and config.lake.lake_transport == "http2"
        return ok("TLS", "a self-signed certificate, beside plaintext" if trial else "off: plaintext only")
    return _validity(file, now)


def _validity(file: Path, now: datetime.datetime) -> Finding:
    from cryptography import x509

    found = x509.load_pem_x509_certificates(file.read_bytes())
    end = min(each.not_valid_after_utc for each in found)
    begin = max(each.not_valid_before_utc for each in found)
    value = f"{file}, good until {end:%Y-%m-%d}"
    remedy = "renew it, and restart the broker"
    if end <= now:
        return warn("TLS", f"{file} has expired on {end:%Y-%m-%d}: clients refuse it", remedy)
    if begin > now:
        return warn(
            "TLS", f"{file} is good from {begin:%Y-%m-%d %H:%M} UTC on only", "look at the clock, or renew it"
        )
    return warn("TLS", value, remedy) if end - now < SOON else ok("TLS", value)


def check_name_servers(config: GatewayConfig) -> list[Finding]:
    """Asks each; a start goes on without them, and registers once they answer."""
    addresses = name_server_addresses(config.broker.namesrv_addr)
    timeout_s = config.registration.connect_timeout_millis / 1000
    return asyncio.run(_asked(addresses, timeout_s)) if addresses else []


async def _asked(addresses: list[str], timeout_s: float) -> list[Finding]:
    client = RemotingClient(connect_timeout_s=timeout_s)

    async def ask(address: str) -> Finding:
        try:
            await client.invoke(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO), 2 * timeout_s)
        except RemotingError as error:
            return warn(
                "name server",
                f"{address}: {error}",
                "start it, open its port to this host, or mend namesrvAddr; until it answers, clients do not find this broker",
            )
        return ok("name server", f"{address} answers")

    try:
        return await asyncio.gather(*map(ask, addresses))
    finally:
        await client.close()


def check_lake(location: str, names: Sequence[str], store_is_new: bool) -> Finding | None:
    """Reads within `LAKE_S` whether the brokers of these names are in it; None without one. A new store cannot start without the
    lake's answer."""
    if not location:
        return None
    try:
        lake = Lake(location)
    except StartError as error:
        return fail("lake", str(error))
    away = fail if store_is_new else warn
    remedy = (
        "look at the location, the network and the credentials; until it can be read, no segment is deleted"
    )
    try:
        brokers = _within(LAKE_S, lake.brokers)
    except LakeUnreachableError as error:
        return away("lake", str(error), remedy)
    except TimeoutError:
        return away("lake", f"{location}: no answer within {LAKE_S:.0f} s", remedy)
    if brokers is None:
        return warn("lake", f"{location} holds no lake yet", "start a reput, or mend lakeLocation")
    missing = [name for name in names if name not in brokers]
    if brokers and missing:
        return warn(
            "lake",
            f"{location} has {', '.join(brokers[:5])}, and not {', '.join(missing)}",
            "check lakeLocation and brokerName",
        )
    return ok("lake", f"{location}, with {counted(len(brokers), 'broker')}")


def _within(seconds: float, call: Callable[[], _T]) -> _T:
    """The answer of a call on a thread that nobody waits for later. Raises TimeoutError, or what the call raised."""
    answers: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="check-lake", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError
    return answers[0]
