"""A release: what maintainers sign and publish, made in ``dist/`` (docs/releasing.md).

- ``version``: the one version, every place that names it, and its section of the changelog
- ``image``: the product's image as an OCI archive, and the list of its parts (SBOM)
- ``files``: archives whose bytes follow from their content, and checksums
- ``__main__``: the steps in their order, and what is left to a person
"""
