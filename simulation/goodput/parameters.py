"""Every parameter of the fault model with its provenance beside it. Data only; it draws and decides nothing.

[P] read in primary text, [S] quoted by a secondary source, [R] recalled, [D] derived by arithmetic, [A] an assumption to
sweep. Two worlds: `planning_world`, in which every interruption is one of the published 3.79 per 1,000 node-days and a
restart costs what is planned for; and `field_world`, in which everything else happens too and restarts take what the
field reports. Times in seconds or days as named; rates per day and unit.
"""

from __future__ import annotations

from enum import StrEnum, unique
from typing import Final

import msgspec


@unique
class Channel(StrEnum):
    """How a fault shows itself, which decides how and when anyone can notice it."""

    SILENT = "silent"  # The host is gone: no more beats.
    DEVICE = "device"  # A definite event of a device.
    PORT = "port"  # A port is down and the gang stands still.
    CRASH = "crash"  # The program ends with an error; no node is at fault.
    HANG = "hang"  # Alive, no event, no step.
    SLOW = "slow"  # Steps come, but slowly; the trainer notices.
    CORRUPT = (
        "corrupt"  # Steps come and are worthless (NaN, silent corruption); the trainer notices.
    )


class Row(msgspec.Struct, frozen=True):
    """A cause with its count in 54 days of 2,048 nodes (Llama 3 405B, table 5) [S]; `hardware`: lemons have more of it."""

    cause: str
    count: int
    channel: Channel
    hardware: bool = True


NODE_DAYS: Final = 54 * 2048  # [D]
# Counts [S]. Which channel a cause takes when it is visible is an assumption [A], from what the cause is.
CAUSES: Final = (
    Row("gpu", 148, Channel.DEVICE),
    Row("hbm", 72, Channel.DEVICE),
    Row("software", 54, Channel.CRASH, hardware=False),
    Row("switch_or_cable", 35, Channel.PORT),
    Row("host_maintenance", 32, Channel.SILENT, hardware=False),
    Row("gpu_sram", 19, Channel.DEVICE),
    Row("gpu_gsp", 17, Channel.DEVICE),
    Row("nic", 7, Channel.PORT),
    Row("nccl_watchdog", 7, Channel.HANG, hardware=False),
    Row("silent_corruption", 6, Channel.CORRUPT),
    Row("thermal", 6, Channel.DEVICE),
    Row("ssd", 3, Channel.CRASH),
    Row("power_supply", 3, Channel.SILENT),
    Row("chassis", 2, Channel.SILENT),
    Row("io_board", 2, Channel.SILENT),
    Row("dependency", 2, Channel.CRASH, hardware=False),
    Row("cpu", 2, Channel.SILENT),
    Row("system_memory", 2, Channel.SILENT),
)
HARDWARE: Final = frozenset(row.cause for row in CAUSES if row.hardware)
# Rows that the processes of NICs, links and switches replace where these are on [R,D].
NETWORK: Final = frozenset({"switch_or_cable", "nic"})
PER_1000_NODE_DAYS: Final = 1000 * sum(row.count for row in CAUSES) / NODE_DAYS  # 3.79 [D]


class Lognormal(msgspec.Struct, frozen=True):
    """Median in seconds, and sigma of the logarithm."""

    median_s: float
    sigma: float


class Network(msgspec.Struct, frozen=True):
    """NICs, links, switches, racks. `None` in a world: only the two rows of the table."""

    nics: int = 8  # a node [P]
    nic_dead: float = 7.9e-6  # per NIC-day [D, Llama 3]
    link_dead: float = 1.9e-5  # per link-day [R, HPN]
    flap: float = 1e-3  # per link-day [A]
    flap_length: Lognormal = Lognormal(2.0, 1.46)  # median 2 s, p99 60 s [A]
    flappy_share: float = 0.10  # of links carry ... [A]
    flappy_carry: float = 0.60  # ... of all flaps [A]
    flap_cut_s: tuple[float, float] = (30.0, 120.0)  # a collective gives up, uniform [D,A]
    switch_nodes: int = 48  # 32-64 nodes lose one rail [A]
    switch_crash: float = 1.7e-5  # per switch-day [R]
    switch_out_s: tuple[float, float] = (300.0, 1200.0)  # [A]
    rack_nodes: int = 32  # [A]
    rack_loss: float = 1e-5  # per rack-day [A]
    rack_within_s: float = 30.0  # all of its nodes [A]


class Noise(msgspec.Struct, frozen=True):
    """What is not a fault of the base rate: false alarms, planned work, stragglers, incidents."""

    false_agent: float = 3.8e-4  # alarms per node-day of the liveness detector [D]
    false_check: float = 1.3e-2  # per node-day of uncorrelated health checks [D]
    gap: float = 1.0  # pauses of the heartbeat per node-day ... [A]
    gap_s: tuple[float, float] = (2.0, 8.0)  # ... this long [A]
    planned: float = 0.42e-3  # drains per node-day [D, Llama 3]
    notice_s: tuple[float, float] = (1800.0, 3600.0)  # [D]
    planned_out_s: float = 3600.0  # [A]
    straggler_share: float = 0.005  # of nodes at any time ... [A,S]
    straggler_speed: tuple[float, float] = (0.7, 0.95)  # ... at this speed [A,S]
    straggler_s: tuple[float, float] = (7_200.0, 172_800.0)  # [A]
    incident_days: float = 30.0  # between incidents of fabric or storage; 10 at the size of L [A]
    incident_s: tuple[float, float] = (600.0, 3600.0)  # [A]


class Repair(msgspec.Struct, frozen=True):
    """What it takes until a node that was taken out is back."""

    reset_share: float = 0.70  # by reset or reboot [S,A]
    reset: Lognormal = Lognormal(1_200.0, 1.09)  # median 20 min, p95 2 h [S,A]
    physical: Lognormal = Lognormal(259_200.0, 0.73)  # median 3 d, p95 10 d [S,A]
    unfixed: float = 0.25  # come back as they went [S,A]


STOP_S: Final = 5.0  # [A]


class World(msgspec.Struct, frozen=True):
    """A fleet and what happens to it."""

    nodes: int
    train_nodes: int  # Of the big job.
    days: float
    scale: float = 1.0  # Of all base hazards; sweep 0.6, 1.0, 1.7 [D: band of published rates]
    lemon_nodes: float = 0.015  # of nodes carry ... [A]
    lemon_carry: float = 0.50  # ... of hardware faults; sweep 0, 0.35, 0.50, 0.70 [D,A]
    new_nodes: float = 0.0  # share of nodes in their first days [A]
    infant_factor: float = 5.0  # at day 0, falling to 1 ... [A]
    infant_days: float = 60.0  # ... over this time [A]
    implicit: float = 0.135  # of hardware faults give no event [D, ByteRobust]
    implicit_kinds: tuple[tuple[Channel, float], ...] = (
        (Channel.HANG, 0.60), (Channel.SLOW, 0.30), (Channel.CORRUPT, 0.10),
    )  # [A]  # fmt: skip
    visible: Lognormal = Lognormal(10.0, 0.77)  # until an explicit fault shows: p99 60 s [S,A]
    slow_noticed_s: float = 50.0  # five rounds of 10 s [S]
    corrupt_noticed_s: tuple[float, float] = (60.0, 600.0)  # [A]
    collective_gives_up_s: float = 32.0  # 7 retries of 4.3 s [P, NCCL]
    second: float = 0.04  # of hardware faults bring another of the same node ... [S]
    second_within_s: float = 300.0  # [S]
    transient: float = 0.25  # gone when tried again [S,A]
    again: float = 0.70  # a bad node that is used again fails the job ... [S,A]
    again_within_s: float = 1_800.0  # [S,A]
    job_failures: float = 0.0  # per node-day; 15e-3 in a research mix [D,A]
    repair: Repair = Repair()
    save_s: float = 5.0  # the trainer stands still for it [A: the bars' d]
    first_save_s: float = 300.0  # until a save has been measured, and so advice given [A]
    stop_s: float = STOP_S  # from the order until every member is gone, unless it hangs [A]
    start_s: float = 5.0  # until all processes exist; inside the restart [A]
    restart: Lognormal = Lognormal(100.0, 0.0)  # from placement to the first new step [A: the bars]
    restart_floor_s: float = 20.0  # [A]
    human: float = 0.0  # of restarts take a person ... [A]
    human_sigma: float = 2.2  # ... and this sigma [D, OLMo Hybrid: median 222 s, mean 2334 s]
    human_median_s: float = 222.0  # also of releasing a held job [S]
    step_s: float = 10.0  # a step of training [A]
    hang_after_s: float = 100.0  # asked for by the job [P, torchtitan after step 1]
    small_nodes: int = 8  # of each smaller job [A]
    network: Network | None = None
    noise: Noise | None = None
    spares: float = 0.99  # so likely are those that smaller jobs leave alone enough; 0: none [D]


# R = 120 s in all, of which the scheduler may take 15: what is left is the program's, stopping included.
PLANNED_RESTART_S: Final = 120.0
SCHEDULER_SHARE_S: Final = 15.0


def planning_world(nodes: int, train_nodes: int, days: float) -> World:
    """D = 5 s, R = 120 s, 3.8 per 1,000 node-days, half of the hardware's on lemons.

    The 3.79 count every interruption that was published, repeats and second faults among them: none are added here.
    """
    own_s = PLANNED_RESTART_S - SCHEDULER_SHARE_S - STOP_S
    return World(nodes, train_nodes, days, restart=Lognormal(own_s, 0.0), again=0.0, second=0.0)


def with_repeats(world: World) -> World:
    """The same with repeats on retry and second faults on top: the job meets more than 3.8 per 1,000 node-days."""
    usual = World(world.nodes, world.train_nodes, world.days)
    return msgspec.structs.replace(world, again=usual.again, second=usual.second)


def field_world(nodes: int, train_nodes: int, days: float, *, incident_days: float) -> World:
    """All processes, and restarts as the field has them: lognormal 222 s, sigma 1.2, 5 % with a person [D,A]."""
    return World(
        nodes, train_nodes, days, new_nodes=0.05, network=Network(), noise=Noise(incident_days=incident_days),
        restart=Lognormal(222.0, 1.2), human=0.05,
    )  # fmt: skip
