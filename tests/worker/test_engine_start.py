"""vLLM's server as a pod starts it: run in place, with its key, its certificate and nothing of either in sight."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from cachefleet_runtime.tls import client_context
from cachefleet_worker import engine_start
from cachefleet_worker.engine_start import on_this_machine, without_weights
from tests.fakes.secret_volume import SecretVolume, authority, issued


def _command(folder: Path, text: str) -> tuple[list[str], dict[str, str]]:
    (folder / "slow_server.py").write_text(text)
    script = "from cachefleet_worker.engine_start import main; main('slow_server')"
    path = os.pathsep.join((str(folder), *filter(None, sys.path)))
    return [sys.executable, "-c", script, "--port", "1"], {**os.environ, "PYTHONPATH": path}


def test_the_server_is_run_as_a_program_with_its_arguments(tmp_path: Path) -> None:
    command, environment = _command(tmp_path, "import sys\nprint(__name__, __spec__.name, sys.argv[1:])\n")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "__main__ slow_server ['--port', '1']\n"


def test_the_worker_key_becomes_vllms_api_key_and_is_in_no_description(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("worker-secret\n")
    told = "import os, sys, pathlib\nprint(os.environ['VLLM_API_KEY'])\n"
    seen = "print('secret' in str([pathlib.Path(f'/proc/self/{n}').read_bytes() for n in ('environ', 'cmdline')]))\n"
    command, environment = _command(tmp_path, told + seen)
    environment["CACHEFLEET_WORKER_KEY_FILE"] = str(tmp_path / "key")
    environment["VLLM_API_KEY"] = "another"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "worker-secret\nFalse\n"


def test_without_ipv6_the_engine_listens_on_all_other_addresses() -> None:
    given = ["--model", "m", "--host", "::", "--port", "8000"]
    assert on_this_machine(given, both_families=True) == given
    assert on_this_machine(given, both_families=False) == ["--model", "m", "--host", "0.0.0.0", "--port", "8000"]
    for other in (["--host", "127.0.0.1"], ["--port", "1"], ["--host"]):
        assert on_this_machine(other, both_families=False) == other


def test_an_engine_without_weights_tells_the_kubelet_why_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_start, "LAST_WORDS", tmp_path / "termination-log")
    monkeypatch.setattr(engine_start, "without_weights", lambda _: "no files there")
    with pytest.raises(SystemExit, match="no files there"):
        engine_start.main("no_server")
    assert (tmp_path / "termination-log").read_text() == "no files there"


def test_an_engine_asks_its_machine_for_its_families(tmp_path: Path) -> None:
    command, environment = _command(tmp_path, "import sys\nprint(sys.argv[1:])\n")
    without = "import socket; socket.has_dualstack_ipv6 = lambda: False; "
    command = [*command[:2], without + command[2], "--host", "::"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "['--host', '0.0.0.0']\n"


def test_without_a_key_file_the_environment_is_left_as_it_is(tmp_path: Path) -> None:
    command, environment = _command(tmp_path, "import os\nprint(os.environ.get('VLLM_API_KEY'))\n")
    environment.pop("CACHEFLEET_WORKER_KEY_FILE", None)
    environment["VLLM_API_KEY"] = "own"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "own\n"


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "cannot be read"), (b" \n", "holds no key"), (b"\xff", "read")]
)
def test_an_engine_without_its_key_is_not_started(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    command, environment = _command(tmp_path, "print('serving everybody')\n")
    environment["CACHEFLEET_WORKER_KEY_FILE"] = str(tmp_path / "key")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "CACHEFLEET_WORKER_KEY_FILE" in done.stderr
    assert problem in done.stderr


TLS_SERVER = """
import asyncio, os, socket, sys, uvicorn
from pathlib import Path

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})

folder = Path(os.environ["CACHEFLEET_TLS_FOLDER"])
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
files = {"ssl_certfile": str(folder / "tls.crt"), "ssl_keyfile": str(folder / "tls.key")}
config = uvicorn.Config(app, lifespan="off", log_level="warning", **files)
asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
"""


def _names(port: int, context: ssl.SSLContext) -> list[str]:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="same") as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"200 OK" in connection.recv(4096)
        certificate = connection.getpeercert()
    assert certificate is not None
    return [str(entry[1]) for entry in certificate["subjectAltName"]]


def test_an_engine_presents_the_certificate_of_the_moment(tmp_path: Path) -> None:
    root = authority()
    volume = SecretVolume(tmp_path / "tls", issued(root, "same"))
    command, environment = _command(tmp_path, TLS_SERVER)
    environment["CACHEFLEET_TLS_FOLDER"] = str(volume.folder)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        with process.stdout as output:
            port = int(output.readline())
        context = client_context(root.pem.decode())
        for turn in ("first", "second", "third"):
            volume.put(issued(root, "same", turn))
            assert _names(port, context) == sorted(["same", turn])
    finally:
        process.terminate()
        process.wait(30)


def test_an_engine_whose_image_of_weights_is_empty_says_so(tmp_path: Path) -> None:
    """As containerd mounts an artifact."""
    arguments = ["--model", str(tmp_path), "--served-model-name", "tiny"]
    assert "build an image of its files" in without_weights(arguments, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert without_weights(arguments, tmp_path) == ""
    assert without_weights(["--model", "org/tiny"], tmp_path / "missing") == ""


def test_an_engine_whose_image_of_an_adapter_is_empty_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "1f3a"
    folder.mkdir()
    modules = [json.dumps({"name": name, "path": path}) for name, path in (("far", "a/b@c"), ("sql", str(folder)))]
    arguments = ["--model", "org/tiny", "--enable-lora", "--lora-modules", "odd", "{", *modules, "--port", "1"]
    words = without_weights(arguments, adapters=tmp_path)
    assert words.startswith(f"{folder} is empty: what the source of adapter sql in spec.model.adapters names")
    assert without_weights(arguments, adapters=tmp_path / "elsewhere") == "", "a folder that is no image's"
    (folder / "adapter_config.json").write_text("{}")
    assert without_weights(arguments, adapters=tmp_path) == ""
    folder.rename(tmp_path / "gone")
    assert without_weights(arguments, adapters=tmp_path) == ""
