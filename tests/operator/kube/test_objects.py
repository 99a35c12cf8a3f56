from cachefleet_operator.kube.objects import Ref


def test_a_manifest_has_the_identity_it_was_made_from() -> None:
    ref = Ref("Lease", "ops", "x")
    assert Ref.of(ref.manifest()) == ref
