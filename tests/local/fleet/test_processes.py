from __future__ import annotations

from pathlib import Path

import pytest

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker_spec import EnvVar
from cachefleet_core.tenancy import FleetKey
from cachefleet_local.fleet.data_folder import DataFolder
from cachefleet_local.fleet.processes import FleetPlan, before_envoy, plan_fleet, port_names, replica_names
from cachefleet_local.supervise.process_spec import Kind, ProcessSpec
from tests.local.pools import changed, example, place

KEY = FleetKey(bytes(32))


def plan(name: str, *, replicas: int = 1, **changes: object) -> FleetPlan:
    pools = example(name)
    return plan_fleet(pools, place(pools, replicas=replicas, **changes), KEY)


def named(fleet: FleetPlan, name: str) -> ProcessSpec:
    return next(spec for spec in fleet.processes if spec.name == name)


def after(argv: tuple[str, ...], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_that_keys_were_made_is_told_to_a_file_outside_of_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    copies = []
    for root in (tmp_path / "one", tmp_path / "other"):
        pools = example("cpu-two-workers")
        fleet = plan_fleet(pools, place(pools, folder=DataFolder(root)), KEY)
        copies.append(Path(named(fleet, "controlplane").environment["CACHEFLEET_ACCESS_MARKER_COPY"]))
    assert {copy.parent for copy in copies} == {tmp_path / "state" / "cachefleet" / "access"}
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert DataFolder(tmp_path / "link").access_marker == copies[0] != copies[1]


def test_one_control_plane_and_two_processes_a_worker_in_order() -> None:
    fleet = plan("cpu-two-workers")
    assert [(spec.name, spec.kind, spec.after) for spec in fleet.processes] == [
        ("controlplane", Kind.CONTROL_PLANE, ()),
        ("demo-0.engine", Kind.ENGINE, ("controlplane",)),
        ("demo-0.agent", Kind.AGENT, ("controlplane", "demo-0.engine")),
        ("demo-1.engine", Kind.ENGINE, ("controlplane",)),
        ("demo-1.agent", Kind.AGENT, ("controlplane", "demo-1.engine")),
    ]


def test_an_envoy_asks_the_picker_of_the_control_plane_and_sends_to_every_engine() -> None:
    pools = example("cpu-two-workers")
    where = place(pools, envoy="/bin/envoy")
    fleet = plan_fleet(pools, where, KEY)
    envoy, plane = fleet.processes[-1], named(fleet, "controlplane")
    config = before_envoy(fleet, where.ports)["static_resources"]
    workers, picker = (
        [
            one["endpoint"]["address"]["socket_address"]["port_value"]
            for one in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        ]
        for cluster in config["clusters"]
    )
    assert (envoy.name, envoy.after, envoy.argv[:3]) == (
        "envoy",
        ("controlplane",),
        ("/bin/envoy", "-c", "/data/envoy.json"),
    )
    assert plane.environment["CACHEFLEET_PICKER_PORT"] == str(picker[0])
    assert picker[0] in plane.ports
    assert [f"http://127.0.0.1:{port}" for port in workers] == [worker.engine_url for worker in fleet.workers]
    assert fleet.envoy_url.endswith(str(config["listeners"][0]["address"]["socket_address"]["port_value"]))


def test_without_an_envoy_the_picker_has_no_port() -> None:
    fleet = plan("cpu-two-workers")
    assert "CACHEFLEET_PICKER_PORT" not in named(fleet, "controlplane").environment
    assert (fleet.envoy_url, fleet.processes[-1].kind) == ("", Kind.AGENT)


def test_engine_and_agent_of_a_worker_agree_on_every_address() -> None:
    fleet = plan("cpu-two-workers")
    for worker in fleet.workers:
        engine, agent = named(fleet, worker.engine), named(fleet, worker.agent)
        events = after(engine.argv, "--kv-events-config")
        assert agent.environment["CACHEFLEET_ENGINE_URL"] == f"http://127.0.0.1:{after(engine.argv, '--port')}"
        assert f'"endpoint":"{agent.environment["CACHEFLEET_EVENTS_ENDPOINT"]}"' in events
        assert f'"replay_endpoint":"{agent.environment["CACHEFLEET_REPLAY_ENDPOINT"]}"' in events
        assert engine.ready_url == f"{worker.engine_url}/health"
        assert agent.ready_url == f"{worker.agent_url}/readyz"
        assert agent.environment["CACHEFLEET_CONTROL_PLANES"] == fleet.internal_url.replace("http", "ws")


def test_all_processes_have_their_temporary_files_in_the_folder_of_the_run() -> None:
    pools = example("cpu-two-workers")
    where = place(pools, envoy="/bin/envoy", replicas=2)
    assert {spec.environment["TMPDIR"] for spec in plan_fleet(pools, where, KEY).processes} == {str(where.run)}


def test_an_engine_has_its_temporary_files_where_its_pool_says() -> None:
    scratch = "  engine:\n    env: [{name: TMPDIR, value: /scratch}]\n"
    pools = changed("cpu-two-workers", "  engine:\n", scratch)
    engine = named(plan_fleet(pools, place(pools), KEY), "demo-0.engine")
    assert engine.environment["TMPDIR"] == "/scratch"


def test_no_credential_is_on_a_command_line_or_shown() -> None:
    fleet = plan("cpu-two-workers")
    key = KEY.worker_key("default/demo")
    assert named(fleet, "demo-0.engine").environment["VLLM_API_KEY"] == key
    assert all(key not in argument for spec in fleet.processes for argument in spec.argv)
    assert key not in repr(fleet)


def test_an_engine_with_the_plugin_shares_key_and_policy_with_its_agent() -> None:
    fleet = plan("cpu-two-workers", plugin=True, engine_version="0.29.0", vllm_plugins="mine")
    engine, agent = named(fleet, "demo-0.engine"), named(fleet, "demo-0.agent")
    for name in ("WORKER_KEY_FILE", "INDEX_KEY_FILE", "POLICY_FILE"):
        assert engine.environment[f"CACHEFLEET_{name}"] == agent.environment[f"CACHEFLEET_{name}"]
    assert engine.environment["VLLM_PLUGINS"] == "mine,cachefleet"
    assert after(engine.argv, "--scheduler-cls") == "cachefleet_worker.plugin.scheduler.create"
    assert "--enable-scale-out" not in engine.argv


def test_each_agent_has_a_token_of_its_own_and_no_token_is_good_for_all() -> None:
    fleet = plan("cpu-two-workers")
    agents = [named(fleet, f"demo-{number}.agent").environment["CACHEFLEET_TOKEN_FILE"] for number in (0, 1)]
    assert [Path(file).name for file in agents] == [
        "default_demo_demo-0.report-token",
        "default_demo_demo-1.report-token",
    ]
    assert "CACHEFLEET_REPORTS_TOKEN_FILE" not in named(fleet, "controlplane").environment


def test_a_stock_engine_is_told_nothing_of_the_plugin() -> None:
    engine = named(plan("cpu-two-workers"), "demo-0.engine")
    assert "--scheduler-cls" not in engine.argv
    assert not any(name.startswith("CACHEFLEET_") or name == "VLLM_PLUGINS" for name in engine.environment)


def test_everything_listens_on_the_loopback_interface() -> None:
    fleet = plan("cpu-two-workers")
    for spec in fleet.processes:
        hosts = {value for name, value in spec.environment.items() if name.endswith("_HOST")}
        assert hosts <= {"127.0.0.1"}
        if spec.kind is Kind.ENGINE:
            assert after(spec.argv, "--host") == "127.0.0.1"
            assert "tcp://" not in " ".join(spec.argv)


def test_the_tiny_model_is_a_folder_and_the_hub_is_not_asked() -> None:
    engine = named(plan("cpu-two-workers"), "demo-0.engine")
    assert after(engine.argv, "--model") == "/models/tiny"
    assert after(engine.argv, "--served-model-name") == "tiny"
    assert engine.environment["HF_HUB_OFFLINE"] == "1"
    assert engine.argv[:3] == ("engine-python", "-m", "vllm.entrypoints.openai.api_server")


def adapted(*adapters: str, environment: str = "") -> list[PrefixCachePool]:
    """The example's pool with these adapters, given as YAML."""
    given = f"source: cachefleet/tiny\n    adapters: [{', '.join(adapters)}]"
    (pool,) = changed("cpu-two-workers", "source: cachefleet/tiny", given)
    if not environment:
        return [pool]
    engine = pool.spec.engine.model_copy(update={"env": (EnvVar(name=environment, value="1"),)})
    return [pool.model_copy(update={"spec": pool.spec.model_copy(update={"engine": engine})})]


def test_revisions_of_adapters_are_fetched_before_the_engine_starts() -> None:
    pools = adapted("{name: sql, source: acme/sql, revision: 5f3c}", "{name: other, source: /weights/other}")
    engine = named(plan_fleet(pools, place(pools, plugin=True), KEY), "demo-0.engine")
    assert engine.argv[:3] == ("engine-python", "-m", "cachefleet_worker.engine_start")
    at = engine.argv.index("--lora-modules")
    assert engine.argv[at + 1] == '{"name":"sql","path":"acme/sql@5f3c"}'
    assert "HF_HUB_OFFLINE" not in engine.environment
    assert named(plan_fleet(pools, place(pools), KEY), "demo-0.agent").environment["CACHEFLEET_LOAD_ADAPTERS"] == "0"


def test_where_the_agent_loads_adapters_the_engine_is_told_none_and_may_ask_the_hub() -> None:
    pools = adapted("{name: sql, source: acme/sql, revision: 5f3c}", environment="VLLM_ALLOW_RUNTIME_LORA_UPDATING")
    fleet = plan_fleet(pools, place(pools, plugin=True), KEY)
    engine, agent = named(fleet, "demo-0.engine"), named(fleet, "demo-0.agent")
    assert engine.argv[:3] == ("engine-python", "-m", "vllm.entrypoints.openai.api_server")
    assert "--enable-lora" in engine.argv
    assert "--lora-modules" not in engine.argv
    assert "HF_HUB_OFFLINE" not in engine.environment
    assert agent.environment["CACHEFLEET_LOAD_ADAPTERS"] == "1"


def test_the_contract_names_the_models_source_not_its_folder() -> None:
    agent = named(plan("cpu-two-workers"), "demo-0.agent")
    assert agent.environment["CACHEFLEET_WEIGHTS"] == "cachefleet/tiny"


def test_the_pools_budget_cannot_be_replaced_from_outside() -> None:
    without = named(plan("cpu-two-workers"), "demo-0.engine").without
    assert {"VLLM_CPU_KVCACHE_SPACE", "VLLM_USE_RUST_FRONTEND"} <= set(without)


def test_workers_of_another_namespace_have_names_of_their_own() -> None:
    fleet = plan("gpu-qwen", devices={"serving.qwen-1.engine": "2,3"})
    assert [worker.name for worker in fleet.workers] == [f"qwen-{i}" for i in range(4)]
    engine = named(fleet, "serving.qwen-1.engine")
    assert engine.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "HF_HUB_OFFLINE" not in engine.environment
    assert after(engine.argv, "--model") == "Qwen/Qwen3-32B"


def test_several_pools_share_one_control_plane() -> None:
    fleet = plan("cpu-two-models")
    assert sum(spec.kind is Kind.CONTROL_PLANE for spec in fleet.processes) == 1
    assert [worker.pool for worker in fleet.workers] == ["default/assistants", "default/readers"]


def test_the_control_plane_has_the_name_that_the_pools_name() -> None:
    fleets = plan("cpu-two-models"), plan("cpu-two-models", control_plane="eu")
    named_so = [named(fleet, "controlplane") for fleet in fleets]
    assert [spec.environment["CACHEFLEET_CONTROL_PLANE_NAME"] for spec in named_so] == ["default", "eu"]


def test_replicas_share_gateway_and_store_and_every_agent_reports_to_each() -> None:
    fleet = plan("cpu-two-workers", replicas=3)
    names = ["controlplane", "controlplane-2", "controlplane-3"]
    assert [(spec.name, spec.after) for spec in fleet.processes[:3]] == [
        ("controlplane", ()),
        ("controlplane-2", ("controlplane",)),
        ("controlplane-3", ("controlplane",)),
    ]
    assert list(fleet.replicas) == names
    replicas = [named(fleet, name) for name in names]
    for variable, value in (("GATEWAY_PORT", "9000"), ("REPLICAS", "3"), ("DATA_DIR", "/data/controlplane")):
        assert {spec.environment[f"CACHEFLEET_{variable}"] for spec in replicas} == {value}
    internal = [spec.environment["CACHEFLEET_INTERNAL_PORT"] for spec in replicas]
    assert [spec.ports for spec in replicas] == [(9000, int(port)) for port in internal]
    for worker in fleet.workers:
        told = named(fleet, worker.agent).environment["CACHEFLEET_CONTROL_PLANES"]
        assert told == ",".join(f"ws://127.0.0.1:{port}" for port in internal)


def test_only_a_replica_beside_others_waits_for_agents() -> None:
    alone, beside = (plan("cpu-two-workers", replicas=count) for count in (1, 2))
    assert named(alone, "controlplane").environment["CACHEFLEET_STARTUP_SECONDS"] == "0"
    assert "CACHEFLEET_STARTUP_SECONDS" not in named(beside, "controlplane").environment


def test_names_logs_and_ports_are_each_used_once() -> None:
    pools = example("cpu-two-models") + example("gpu-qwen") + example("cpu-two-workers")
    fleet = plan_fleet(pools, place(pools), KEY)
    for values in (
        [spec.name for spec in fleet.processes],
        [spec.log for spec in fleet.processes],
        [spec.ready_url for spec in fleet.processes],
        port_names(pools, replica_names(8)),
    ):
        assert len(set(values)) == len(values)
