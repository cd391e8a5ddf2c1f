"""What every deployable shares: ports, codec, chain, wiring, settings, telemetry. Only `wiring` names an adapter."""
