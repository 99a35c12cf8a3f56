"""Every reason that a condition or an event of a pool can have; docs/operations.md explains each."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Reasons in the order of the conditions that use them; those of BudgetAdmitted: ``cachefleet_core.budget``."""

    # ConfigValid
    VALID = "Valid"
    INVALID = "Invalid"
    INVALID_POD_TEMPLATE = "InvalidPodTemplate"
    REFUSED = "Refused"
    IMAGE_VOLUMES_UNSUPPORTED = "ImageVolumesUnsupported"
    NAME_TAKEN = "NameTaken"
    CHAT_TEMPLATE_MISSING = "ChatTemplateMissing"
    DEVICES_NOT_CLAIMABLE = "DevicesNotClaimable"
    FLEET_KEY_BROKEN = "FleetKeyBroken"
    FLEET_KEY_CHANGED = "FleetKeyChanged"
    CERTIFICATES_BROKEN = "CertificatesBroken"
    # BudgetAdmitted
    CONFIG_INVALID = "ConfigInvalid"
    # WorkersAvailable
    ALL_READY = "AllReady"
    SOME_READY = "SomeReady"
    NONE_READY = "NoneReady"
    NO_WORKERS_WANTED = "NoWorkersWanted"
    PODS_REFUSED = "PodsRefused"
    # Problems of a pod, under WorkersAvailable, Progressing and Degraded
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    CONTAINER_REFUSED = "ContainerRefused"
    CRASHED = "Crashed"
    CRASH_LOOPING = "CrashLooping"
    OUT_OF_MEMORY = "OutOfMemory"
    UNSCHEDULABLE = "Unschedulable"
    DEVICES_UNAVAILABLE = "DevicesUnavailable"
    VOLUME_UNAVAILABLE = "VolumeUnavailable"
    WORKER_KEY_REFUSED = "WorkerKeyRefused"
    # ContractConsistent, IndexFresh and HitRateMet
    NO_CONTROL_PLANE = "NoControlPlane"
    CONTROL_PLANE_UNREACHABLE = "ControlPlaneUnreachable"
    CONTROL_PLANE_UNKNOWN = "ControlPlaneUnknown"
    POOL_NOT_KNOWN = "PoolNotKnown"
    CONSISTENT = "Consistent"
    NO_CONTRACT = "NoContractYet"
    CONTRACT_MISMATCH = "ContractMismatch"
    POOLS_DIFFER = "PoolsDiffer"
    WEIGHTS_DIFFER = "WeightsDiffer"
    FRESH = "ReportsFresh"
    STALE = "ReportsStale"
    NO_READY_WORKERS = "NoReadyWorkers"
    NO_OBJECTIVE = "NoObjective"
    NO_SAMPLES = "NoSamples"
    TOO_FEW_SAMPLES = "TooFewSamples"
    OBJECTIVE_MET = "ObjectiveMet"
    BELOW_OBJECTIVE = "BelowObjective"
    # EngineAsAsked
    ENGINES_AS_ASKED = "EnginesAsAsked"
    ENGINE_DIFFERS = "EngineDiffers"
    NO_PREFIX_CACHE = "NoPrefixCache"
    ADAPTER_NOT_LOADED = "AdapterNotLoaded"
    # IndexBlind
    HITS_INDEXED = "HitsIndexed"
    SERVES_UNINDEXED = "ServesUnindexed"
    NOT_UNDERSTOOD = "NotUnderstood"
    # ModelNameConflict
    NAME_OWNED = "NameOwned"
    NAME_OF_ANOTHER = "NameOfAnother"
    NAME_NOT_ALLOWED = "NameNotAllowed"
    ADAPTER_NAME_TAKEN = "AdapterNameTaken"
    ALIAS_TAKEN = "AliasTaken"
    # KeysBroken
    KEYS_HELD = "KeysHeld"
    KEYS_REFUSED = "KeysRefused"
    KEYS_REWRITTEN = "KeysRewritten"
    # InferencePoolAccepted
    ACCEPTED_BY_GATEWAYS = "AcceptedByGateways"
    NO_GATEWAY = "NoGateway"
    GATEWAY_PENDING = "GatewayPending"
    REFUSED_BY_GATEWAY = "RefusedByGateway"
    INFERENCE_POOLS_NOT_SERVED = "InferencePoolsNotServed"
    NO_PICKER = "NoPicker"
    PICKER_SERVICE_MISSING = "PickerServiceMissing"
    WORKERS_NOT_SELECTED = "WorkersNotSelected"
    # Progressing
    HELD = "Held"
    STALLED = "Stalled"
    SETTLED = "Settled"
    ROLLING_OUT = "RollingOut"
    ROLLOUT_PAUSED = "RolloutPaused"
    # Stalled
    CONVERGES = "Converges"
    # Degraded
    NOTHING_WRONG = "NothingWrong"
    FIELD_CONFLICT = "FieldConflict"
    WORKER_FAILED = "WorkerFailed"
    ENGINE_STUCK = "EngineStuck"
    CLAIMS_NOT_SERVED = "ClaimsNotServed"
    FOREIGN_PODS = "ForeignPods"
    WARM_PREFIX_TOO_LONG = "WarmPrefixTooLong"
    WARM_PREFIX_REFUSED = "WarmPrefixRefused"
    WARM_PREFIX_FAILING = "WarmPrefixFailing"
    # An event alone
    POD_RELEASED = "PodReleased"
    # Ready
    ENGINES_SUSPENDED = "EnginesSuspended"
    WORKERS_READY = "WorkersReady"
