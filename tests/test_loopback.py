"""Tests dial this machine and no other: conftest.py sees to it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.conftest import DIALLED


@pytest.mark.parametrize("address", ["192.0.2.1", "10.0.0.1", "0.0.0.0"])
async def test_another_machine_cannot_be_dialled(address: str):
    with pytest.raises(PermissionError, match="loopback only"):
        socket.create_connection((address, 9), timeout=1)
    with pytest.raises(PermissionError, match="loopback only"):
        await asyncio.open_connection(address, 9)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, pytest.raises(PermissionError):
        datagrams.sendto(b"", (address, 9))
    assert [*DIALLED] == [address] * 3
    DIALLED.clear()


async def test_this_machine_can_be_dialled():
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        await writer.wait_closed()
    assert DIALLED == []
