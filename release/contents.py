"""Build the wheel and the source archive, and check what is in them: `python -m release.contents [FOLDER]`."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LARGEST = 12 * 1024**2  # bytes of the wheel
LEFT_OUT = (".ci/", "training/cache/")  # of the source archive
LICENCES = {"LICENSE", "NOTICE.md"}
# What a user would miss first; equality with the repository's files holds it too, as long as they are in the repository.
NEEDED = (
    "clearhead/models/builtin/model.safetensors",
    "clearhead/models/builtin/tokenizer.json",
    "clearhead/viewer/page/index.html",
    "clearhead/lesson/assets/index.html",
    "clearhead/py.typed",
)


def tracked() -> set[str]:
    """The repository's files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).exists()}


def build(folder: Path) -> tuple[Path, Path]:
    """Wheel and source archive, built into a folder."""
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


def in_wheel(wheel: Path) -> dict[str, int]:
    """Name and size in bytes of every file of a wheel."""
    with zipfile.ZipFile(wheel) as opened:
        return {info.filename: info.file_size for info in opened.infolist()}


def in_archive(archive: Path) -> dict[str, int]:
    """Name, within the folder that it unpacks to, and size of every file of a source archive."""
    with tarfile.open(archive) as opened:
        return {member.name.partition("/")[2]: member.size for member in opened.getmembers() if member.isfile()}


def faults(wheel: Path, archive: Path) -> list[str]:
    """What is wrong with the two, in words."""
    found = []
    files = tracked()
    package = {name.removeprefix("src/") for name in files if name.startswith("src/")}
    packed = set(in_wheel(wheel))
    metadata = {name for name in packed if name.partition("/")[0].endswith(".dist-info")}
    found += differences("wheel", packed - metadata, package)
    found += [f"wheel: {name} is needed" for name in NEEDED if name not in packed]
    licences = {name.partition("/licenses/")[2] for name in metadata if "/licenses/" in name}
    if licences != LICENCES:
        found.append(f"wheel: licences are {sorted(licences)}, expected {sorted(LICENCES)}")
    if wheel.stat().st_size > LARGEST:
        found.append(f"wheel: {wheel.stat().st_size} bytes, more than {LARGEST}")
    wanted = {name for name in files if not name.startswith(LEFT_OUT)}
    return found + differences("source archive", set(in_archive(archive)) - {"PKG-INFO"}, wanted)


def differences(which: str, packed: set[str], wanted: set[str]) -> list[str]:
    """Files that are in one and not in the other."""
    return [
        *(f"{which}: {name} is in it and not in the repository" for name in sorted(packed - wanted)),
        *(f"{which}: {name} is missing" for name in sorted(wanted - packed)),
    ]


def main() -> int:
    """Build into dist/ or the folder that is given, print what is in it and what is wrong."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    if folder.exists() and any(folder.iterdir()):
        print(f"{folder} is not empty: remove what is in it")
        return 1
    folder.mkdir(exist_ok=True)
    wheel, archive = build(folder)
    for built, files in ((wheel, in_wheel(wheel)), (archive, in_archive(archive))):
        print(f"{built.name}: {built.stat().st_size / 1e6:.2f} MB, {len(files)} files")
        parts: dict[str, list[int]] = {}
        for name, size in files.items():
            parts.setdefault("/".join(name.split("/")[:2]), []).append(size)
        for part, sizes in sorted(parts.items(), key=lambda item: -sum(item[1]))[:12]:
            print(f"  {part:<40} {sum(sizes) / 1e3:9.1f} kB  {len(sizes):4} files")
    wrong = faults(wheel, archive)
    print("\n".join(wrong) or "contents as they should be")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archive)], check=True)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
