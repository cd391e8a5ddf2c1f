"""Simulated hosts: what is broken of one and what its world believes of it never differ."""

from __future__ import annotations

from simulation.world import Shape, World


def test_a_host_that_comes_back_from_the_workshop_has_all_its_links_for_everyone() -> None:
    """Seed 739951145: gangs on it stood still for ever, for a link that was up and nobody could mend."""
    world = World(1, Shape(nodes=1, nics=2, jobs=0))
    host = world.hosts[0]
    host.link("ib1", up=False)
    assert world.physics.links == {host.name: (1, 2)}
    host.die()
    host.repair()
    assert (world.physics.links, set(host.links.values())) == ({}, {True})
