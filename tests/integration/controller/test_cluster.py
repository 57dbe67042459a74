"""A run on a cluster of three servers: one is killed, one that leads, one is cut off; the log stays one, in order.

After the loss of the leader observations flow again within seconds, votes only when the log's new leader has found its
source, up to 40 s later (server 2.15.1); so the tests wait for ticks there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.nodes import NODES, Cluster, clustered
from tests.support.swarm import Swarm, swarming

pytestmark = pytest.mark.slow

MESHES = ("mesh", "mesh-2", "mesh-3")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with clustered(tmp_path, ("pendulum",)) as cluster:
        yield cluster


@pytest.fixture
async def swarm(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Swarm]:
    async with swarming(cluster, tmp_path) as swarm:
        await asyncio.gather(*map(swarm.mesh, MESHES))
        await swarm.agent("pendulum")
        yield swarm


async def ended(swarm: Swarm) -> int:
    assert all(swarm.processes[name].popen.poll() is None for name in MESHES)
    return await swarm.ended()


async def test_a_run_survives_a_killed_node_and_a_killed_leader(cluster: Cluster, swarm: Swarm) -> None:
    async with cluster.bus() as admin, swarm.training(20):
        await swarm.decided(2)
        leader = await cluster.leader(admin)
        follower = next(node for node in NODES if node != leader)
        await cluster.kill(follower)
        await swarm.decided(3)
        await cluster.start_node(follower)
        leader = await cluster.leader(admin)
        await cluster.kill(leader)
        await swarm.ticks(40)
        await cluster.start_node(leader)
        await swarm.ticks(40)
    assert await ended(swarm) >= 5


async def test_the_node_that_leads_is_cut_off_and_comes_back(cluster: Cluster, swarm: Swarm) -> None:
    """What it still took and could not agree on with the others is gone; who said it says it again."""
    async with cluster.bus() as admin, swarm.training(20):
        await swarm.decided(2)
        leader = await cluster.leader(admin)
        cluster.cut_off(leader, True)
        await swarm.ticks(40)
        cluster.cut_off(leader, False)
        await swarm.ticks(40)
    assert await ended(swarm) >= 2
