"""The command line verifies a control plane that serves TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from cachefleet_core.tls_names import AUTHORITIES
from cachefleet_local.cli.admin_client import AdminClient
from cachefleet_local.cli.contexts.access import CA_FILE_VARIABLE, Where, find_access
from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_runtime.tls import server_context
from tests.fakes.secret_volume import SecretVolume, authority, issued


@asynccontextmanager
async def control_plane(folder: Path) -> AsyncIterator[str]:
    async def pools(request: web.Request) -> web.Response:
        return web.json_response({"token": request.headers["Authorization"]})

    app = web.Application()
    app.router.add_get("/admin/v1/pools", pools)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context(folder)).start()
        yield f"https://localhost:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def asked(url: str, folder: Path, ca_file: Path | None) -> object:
    (folder / "token").write_text("t")
    environment = {CA_FILE_VARIABLE: str(ca_file)} if ca_file else {}
    access = find_access(Where(url, folder / "token"), environment)
    return await asyncio.to_thread(AdminClient(access).get, "pools")


async def test_it_trusts_the_authority_that_it_is_told(tmp_path: Path) -> None:
    volume = SecretVolume(tmp_path / "tls", issued(authority(), "localhost"))
    other = SecretVolume(tmp_path / "other", {AUTHORITIES: authority().pem})
    async with control_plane(volume.folder) as url:
        assert await asked(url, tmp_path, volume.folder / AUTHORITIES) == {"token": "Bearer t"}
        for wrong in (None, other.folder / AUTHORITIES):
            with pytest.raises(FailureError, match=CA_FILE_VARIABLE):
                await asked(url, tmp_path, wrong)


@pytest.mark.parametrize("content", [None, b"nothing"])
async def test_a_file_without_a_certificate_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(FailureError, match=f"{CA_FILE_VARIABLE}: no certificate can be read from .*ca.crt") as raised:
        await asked("https://localhost:1", tmp_path, file)
    assert raised.value.status is Exit.BAD_INPUT
