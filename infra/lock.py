"""Write the lock of the tested CPU set from the environment that runs this script.

    .venv/bin/python infra/lock.py > infra/locks/cpu.lock
    .venv/bin/python infra/lock.py driver > infra/locks/driver.lock      # likewise serve-cpu, train: what an image installs

The closure starts at the project's own requirements and the extras `serve-cpu`, `train`, `browser` and `dev`. Whatever only the vLLM CPU
build needs is marked for Linux, so other systems install the rest. What infra/install.py names in `LEFT_OUT` never enters.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata

from install import LEFT_OUT, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

BUILD = ("setuptools", "wheel")  # the project itself is installed without build isolation
LINUX = 'sys_platform == "linux"'
X86 = f'{LINUX} and platform_machine == "x86_64"'
MARKERS = {
    "intel-cmplr-lib-ur": X86,  # a dependency of intel-openmp, which names it without a marker
    "intel-openmp": X86,
}


def closure(names: list[str]) -> set[str]:
    """Canonical names of everything that the requirements `names` pull in, as installed here."""
    seen: set[str] = set()
    queue = [Requirement(name) for name in names]
    done: set[tuple[str, str]] = set()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT:
            continue
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            sys.exit(f"{name} is required but not installed here")
        seen.add(name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in done:
                continue
            done.add((name, extra))
            queue += [r for r in map(Requirement, required) if r.marker is None or r.marker.evaluate({"extra": extra})]
    return seen


IMAGES = {"driver": (), "serve-cpu": ("serve-cpu",), "train": ("train",)}
"""Image -> extras on top of the project's own requirements. They share Ray and Python, and no more than they need (R15)."""


def image_lock(image: str) -> None:
    """Print the part of the set that one image installs. Images are Linux, so nothing carries a marker for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [*project["dependencies"], *BUILD]
    for extra in IMAGES[image]:
        names += project["optional-dependencies"][extra]
    print(f"# The part of infra/locks/cpu.lock that the image {image} installs. Written by `infra/lock.py {image}`.")
    for name in sorted(closure(names)):
        marker = MARKERS.get(name, "")
        print(f"{name}=={metadata.version(name)}{' ; ' + marker if marker else ''}")


def main() -> None:
    """Print the lock, one `name==version [; marker]` a line, sorted."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    everywhere = closure([*project["dependencies"], *extras["train"], *extras["browser"], *extras["dev"], *BUILD])
    linux = closure(extras["serve-cpu"]) - everywhere
    print("# The tested CPU set: Python 3.11. Written by infra/lock.py; installed by infra/install.py without dependency resolution.")
    print("# torchvision, torchaudio, torchcodec (they cannot load beside torch's CPU build) and triton are left out on purpose.")
    for name in sorted(everywhere | linux):
        marker = MARKERS.get(name, LINUX if name in linux else "")
        print(f"{name}=={metadata.version(name)}{' ; ' + marker if marker else ''}")


if __name__ == "__main__":
    if len(sys.argv) > 2 or not {*sys.argv[1:]} <= IMAGES.keys():
        sys.exit(f"error: unknown image\n  seen: {' '.join(sys.argv[1:])}\n  fix: one of {', '.join(IMAGES)}, or none for the whole set")
    image_lock(sys.argv[1]) if len(sys.argv) == 2 else main()
