"""Which harness a name means: a folder, a family's own, a run's evolved one, or any candidate of a run's search."""

from __future__ import annotations

from pathlib import Path

import orjson

from coevo.config import RunConfig, load_config
from coevo.errors import ConfigError, nearest
from coevo.evolve.proposals import Line, ProposalLog, lineage_of
from coevo.harness.bundle import HarnessBundle
from coevo.ports import BlobStore
from coevo.store.artifacts import StageManifest
from coevo.store.harnesses import HarnessStore
from coevo.tasks import FAMILIES, load_family
from coevo.tasks.family import Size

__all__ = ["find_harness"]


def find_harness(name: str) -> Line:
    """The harness that `name` means, last of its line.

    A folder; `FAMILY[/SIZE]` for the family's base harness; a run's `CONFIG.yaml` for its evolved harness (the base before the search is
    done); `CONFIG.yaml#HASH` for any candidate of its search, by the first digits; `CONFIG.yaml#base`.

    Raises:
        ConfigError: Nothing has this name, or what has it is broken.
    """
    place, _, digits = name.partition("#")
    if place.endswith((".yaml", ".yml")):
        return _of_run(load_config(Path(place)), digits)
    if digits:
        raise ConfigError("only a run has candidates", seen=name, fix="write CONFIG.yaml#HASH")
    family, _, size = place.partition("/")
    if not Path(place).is_dir() and (family in FAMILIES or not size):
        return [(None, _of_family(family, size or Size.MINI))]
    return [(None, HarnessBundle.load(Path(place)))]


def _of_family(name: str, size: str) -> HarnessBundle:
    if size not in list(Size):
        raise ConfigError("unknown size", seen=size, fix=nearest(size, [str(one) for one in Size]))
    family = load_family(name)
    if not family.templates(Size(size)):
        has = ", ".join(one for one in Size if family.templates(one))
        raise ConfigError(f"{name} has no instances of this size", seen=size, fix=f"it has {has}")
    return HarnessBundle.load(family.base_harness(Size(size)))


def _of_run(config: RunConfig, digits: str) -> Line:
    from cluster.stores import open_source
    from jobs.proposer import PROPOSALS

    base = HarnessBundle.load(Path(config.evolve.harness)) if config.evolve.harness else _of_family(config.family, config.size)
    store = open_source(config.store).open()
    wanted = digits or _best(store, config.name) or base.hash
    if wanted in ("base", base.hash):
        return [(None, base)]
    return lineage_of(wanted, base, ProposalLog(store, f"{config.name}/{PROPOSALS}"), HarnessStore(store, config.name))


def _best(store: BlobStore, run: str) -> str:
    """Hash of the run's evolved harness; empty before its search is done."""
    manifests = [info.key for info in store.list(f"{run}/evolve/") if info.key.endswith("/manifest.json")]
    if not manifests:
        return ""
    key = StageManifest.from_bytes(store.get(manifests[-1])).output("search").key
    return str(orjson.loads(store.get(key))["best_hash"])
