from pathlib import Path


def test_the_folder_does_not_shadow_the_standard_library() -> None:
    assert not (Path(__file__).parents[2] / "operator" / "__init__.py").exists()
