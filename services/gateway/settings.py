"""Settings of the gateway."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from services.runtime.settings import CellSettings


class GatewaySettings(CellSettings, frozen=True, kw_only=True):
    """What `tidemilld gateway` is told."""

    listen: Annotated[
        str, Meta(description="Address of the API, HOST:PORT; port 0: any free one")
    ] = "127.0.0.1:7170"
    name: Annotated[
        str,
        Meta(
            max_length=200, description="Name of this gateway in records; empty: that of the host"
        ),
    ] = ""
    tokens: Annotated[
        str,
        Meta(
            description="File of tokens, principals and roles; empty: one in the cell's directory"
        ),
    ] = ""
    key: Annotated[
        str,
        Meta(
            description="File of the cell's key, 64 hex characters, the same for all gateways of the cell; "
            "empty: one in the cell's directory"
        ),
    ] = ""
    tls_certificate: Annotated[
        str, Meta(description="PEM file of the certificate chain; empty: no TLS")
    ] = ""
    tls_key: Annotated[str, Meta(description="PEM file of the certificate's key")] = ""
    allow_plaintext: Annotated[
        bool,
        Meta(
            description="Serve others than this machine without TLS: only where something else encrypts"
        ),
    ] = False
    outside_accounts: Annotated[
        tuple[str, ...],
        Meta(
            description="Service accounts whose signed submissions in <cell>.outside are taken, comma-separated; "
            "empty: none is read"
        ),
    ] = ()
    drain_s: Annotated[
        float, Meta(ge=0, description="Time that calls have to end after SIGTERM, in seconds")
    ] = 10.0
