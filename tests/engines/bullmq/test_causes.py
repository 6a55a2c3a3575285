"""What is wrong with an address or with rights is named, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from onward.engine.values import ClaimRequest, Settlement
from onward.engines.bullmq.engine import BullMQEngine
from onward.engines.urls import open_engine
from onward.errors import InvalidValue, StoreUnavailable
from onward.job import NewJob
from onward.lifecycle import Complete
from tests.servers.redis import RedisCluster, RedisServer

JOB = NewJob(type="send", queue="mail")


async def use(engine: BullMQEngine) -> None:
    """Do what a program does first."""
    await engine.open()
    try:
        await engine.enqueue([JOB])
        (claim,) = (await engine.claim(ClaimRequest(worker_id="w", queues=("mail",), slots=1))).claims
        assert not await engine.settle([Settlement(claim, Complete())])
        term = await engine.elect("w", lease=timedelta(seconds=30))
        assert term is not None
        await engine.resign(term)
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(port=True) as server:
        yield server


@pytest.mark.parametrize("prefix", ["bull", "{bull}"])
async def test_a_plain_url_to_a_node_of_a_cluster_says_so(cluster: RedisCluster, prefix: str):
    refused: list[StoreUnavailable] = []
    for node in cluster.nodes:  # one of them has the keys of a prefix in braces
        try:
            await use(BullMQEngine(node.tcp_url, prefix=prefix))
        except StoreUnavailable as error:
            refused.append(error)
    assert len(refused) >= 2
    assert all("is a node of a Redis Cluster" in str(error) for error in refused)
    assert {error.remedy for error in refused} == {
        "add cluster=on and a prefix in braces to the URL: ?cluster=on&prefix={bull}"
    }


async def test_the_remedy_for_a_cluster_helps(cluster: RedisCluster):
    engine = open_engine(f"{cluster.url}?cluster=on&prefix={{bull}}")
    assert isinstance(engine, BullMQEngine)
    await use(engine)


@pytest.mark.parametrize("url", ["redis://host:6379/1?cluster=on", "redis://host:6379?cluster=on&db=1"])
def test_a_database_of_a_cluster_other_than_0_is_refused(url: str):
    with pytest.raises(InvalidValue, match="a cluster has only database 0: remove it from the URL"):
        BullMQEngine(url, prefix="{bull}")


async def test_one_of_several_nodes_that_answers_is_enough(cluster: RedisCluster):
    hosts = ",".join(node.tcp_url.removeprefix("redis://") for node in cluster.nodes[1:])
    await use(BullMQEngine(f"redis://127.0.0.1:1,{hosts}?cluster=on", prefix="{bull}"))
    with pytest.raises(StoreUnavailable, match=r"redis://one:6379,two:6379\?cluster=on"):
        await use(BullMQEngine("redis://127.0.0.1:1,127.0.0.1:2?cluster=on", prefix="{bull}"))


async def test_a_server_that_is_no_cluster_says_so(server: RedisServer):
    with pytest.raises(StoreUnavailable, match="remove cluster=on from the URL"):
        await use(BullMQEngine(f"{server.tcp_url}?cluster=on", prefix="{bull}"))


async def test_a_user_without_rights_to_keys_is_told_which(server: RedisServer):
    with server.client() as client:
        client.execute_command("ACL SETUSER", "keys", "on", ">pw", "~bull:*", "+@all")
    url = server.tcp_url.replace("redis://", "redis://keys:pw@")
    with pytest.raises(StoreUnavailable, match="denies the user keys keys that Onward needs") as refused:
        await use(BullMQEngine(url))
    assert refused.value.remedy.startswith("ACL SETUSER keys ~bull:* ~onward:*")
    with server.client() as client:
        client.execute_command(*refused.value.remedy.partition(" (")[0].split())
    await use(BullMQEngine(url))


async def test_a_user_without_rights_to_a_command_is_told_so(server: RedisServer):
    with server.client() as client:
        client.execute_command("ACL SETUSER", "commands", "on", ">pw", "~*", "+@all", "-script")
    with pytest.raises(StoreUnavailable, match=r"denies the user commands a command .*'script") as refused:
        await use(BullMQEngine(server.tcp_url.replace("redis://", "redis://commands:pw@")))
    assert "+@all" in refused.value.remedy


async def test_a_wrong_password_is_not_taken_for_missing_rights(server: RedisServer):
    with pytest.raises(StoreUnavailable, match="refuses the login") as refused:
        await use(BullMQEngine(server.tcp_url.replace("redis://", "redis://keys:wrong@")))
    assert refused.value.remedy == "check the user and the password in the URL"


@pytest.mark.parametrize("how", ["open", "check"])
async def test_tls_to_a_plain_port_says_so(server: RedisServer, how: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onward.engines.bullmq.client_factory._PROBE_TIMEOUT", 0.3)
    engine = BullMQEngine(server.tcp_url.replace("redis://", "rediss://"))
    with pytest.raises(StoreUnavailable, match="does not speak TLS on port") as refused:
        await getattr(engine, how)()
    assert refused.value.remedy == "use redis:// for this port, or give the port for TLS"
