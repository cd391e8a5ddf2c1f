"""Simulated hosts: what is broken of one and what its world believes of it never differ."""

from __future__ import annotations

from simulation.history import ACTS, KINDS
from simulation.nic_faults import NIC_FAULTS
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


def test_an_interface_that_drops_large_frames_is_whole_again_whatever_its_link_did_meanwhile() -> (
    None
):
    """Seed 1 of any-nic: a link came back while its frames were dropped, and a gang stood still there for ever."""
    world = World(1, Shape(nodes=1, nics=2, jobs=0))
    host = world.hosts[0]
    host.link("ib0", up=False)
    host.carry("ib1", large=False)
    assert world.physics.links == {host.name: (0, 2)}
    host.link("ib0", up=True)
    assert world.physics.links == {host.name: (1, 2)}
    host.carry("ib1", large=True)
    assert world.physics.links == {}
    host.carry("ib0", large=False)
    host.mend()
    assert world.physics.links == {}


def test_kinds_of_faults_that_came_later_are_drawn_by_no_seed_of_before() -> None:
    assert NIC_FAULTS.keys() <= ACTS.keys() and not NIC_FAULTS.keys() & set(KINDS)
