"""Ways in which a step on storage goes bad. Each returns whether it did anything."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcckpt.format import layout

PAGE = 4096


@dataclass(frozen=True)
class Scene:
    """Where damage is done.

    Attributes
    ----------
    run : Path
        The run directory, a copy.
    twin : Path
        Another run that saved the same values; not to be changed.
    scratch : Path
        For what is moved out of the run.
    step : int
        The step to damage.
    """

    rng: random.Random
    run: Path
    twin: Path
    scratch: Path
    step: int

    @property
    def path(self) -> Path:
        """The directory of the step."""
        return self.run / layout.step_dirname(self.step)

    @property
    def previous(self) -> Path:
        """The directory of another step of the run: the one before, or of the first one the one after."""
        return self.run / layout.step_dirname(self.step - 10 if self.step > 10 else 20)

    @property
    def manifest(self) -> Path:
        """The manifest of the step."""
        return self.path / layout.MANIFEST

    def files(self) -> list[Path]:
        """Return the data files of the step."""
        return sorted((self.path / layout.DATA).iterdir())

    def any_file(self) -> Path:
        """Choose a data file."""
        return self.rng.choice(self.files())


@dataclass(frozen=True)
class Kind:
    """A kind of damage."""

    name: str
    harm: Callable[[Scene], bool]


KINDS: list[Kind] = []
Bytes = Callable[[random.Random, bytearray], bytes | None]


def _kind(harm: Callable[[Scene], bool]) -> Callable[[Scene], bool]:
    KINDS.append(Kind(harm.__name__.strip("_").replace("_", " "), harm))
    return harm


def _rewrite(path: Path, change: Callable[[bytearray], bytes | None]) -> bool:
    """Put changed bytes in the place of a file's bytes."""
    before = path.read_bytes()
    after = change(bytearray(before))
    if after is None or after == before:
        return False
    with path.open("r+b") as file:
        file.write(after)
        file.truncate()
    return True


def _of_any_file(change: Bytes) -> None:
    """Make two kinds of damage out of a change of bytes: to a data file and to the manifest."""
    name = change.__name__.strip("_").replace("_", " ")
    KINDS.append(Kind(f"data: {name}", lambda s: _rewrite(s.any_file(), lambda data: change(s.rng, data))))
    KINDS.append(Kind(f"manifest: {name}", lambda s: _rewrite(s.manifest, lambda data: change(s.rng, data))))


# -- bytes ---------------------------------------------------------------------------------------


@_of_any_file
def _flipped_bit(rng: random.Random, data: bytearray) -> bytes:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


@_of_any_file
def _flipped_bits(rng: random.Random, data: bytearray) -> bytes:
    start = rng.randrange(len(data))
    for at in range(start, min(len(data), start + rng.randint(2, 64))):
        data[at] ^= rng.randrange(256)
    return data


@_of_any_file
def _zeroed_page(rng: random.Random, data: bytearray) -> bytes:
    start = rng.randrange(-(-len(data) // PAGE)) * PAGE
    end = min(len(data), start + PAGE)
    data[start:end] = bytes(end - start)
    return data


@_of_any_file
def _page_of_garbage(rng: random.Random, data: bytearray) -> bytes:
    start = rng.randrange(-(-len(data) // PAGE)) * PAGE
    end = min(len(data), start + PAGE)
    data[start:end] = rng.choice([b"\xff" * (end - start), rng.randbytes(end - start)])
    return data


@_of_any_file
def _truncation(rng: random.Random, data: bytearray) -> bytes:
    return data[: rng.choice([0, len(data) - 1, rng.randrange(len(data)), rng.randrange(len(data)) // PAGE * PAGE])]


@_of_any_file
def _lost_tail(rng: random.Random, data: bytearray) -> bytes:
    """The size is right, but the end was never written: as after a crash without fsync."""
    start = rng.randrange(len(data)) // PAGE * PAGE
    return data[:start] + bytes(len(data) - start)


@_of_any_file
def _extension(rng: random.Random, data: bytearray) -> bytes:
    more = rng.choice([1, 7, PAGE, rng.randint(1, 3 * PAGE)])
    return data + rng.choice([bytes(more), b" " * more, b"\n" * more, rng.randbytes(more)])


@_of_any_file
def _swapped_blocks(rng: random.Random, data: bytearray) -> bytes | None:
    size = rng.choice([64, 512, PAGE, 1 << 20])
    if len(data) < 2 * size:
        return None
    a, b = (n * size for n in rng.sample(range(len(data) // size), 2))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    return data


@_of_any_file
def _shifted(rng: random.Random, data: bytearray) -> bytes:
    """One byte too many in the middle, the length being right."""
    at = rng.randrange(len(data))
    return data[:at] + b" " + data[at:-1]


@_of_any_file
def _doubled(rng: random.Random, data: bytearray) -> bytes:
    return data + data[: rng.choice([len(data), rng.randint(1, len(data))])]


@_of_any_file
def _emptied(rng: random.Random, data: bytearray) -> bytes:
    return b""


# -- the manifest's text and the files' headers --------------------------------------------------


def _text(change: Callable[[random.Random, bytes], bytes | None]) -> None:
    name = f"manifest: {change.__name__.strip('_').replace('_', ' ')}"
    KINDS.append(Kind(name, lambda s: _rewrite(s.manifest, lambda data: change(s.rng, bytes(data)))))


@_text
def _changed_digit(rng: random.Random, data: bytes) -> bytes:
    at = rng.choice([match.start() for match in re.finditer(rb"[0-9]", data)])
    return data[:at] + b"%d" % ((data[at] - 48 + rng.randint(1, 9)) % 10) + data[at + 1 :]


@_text
def _changed_checksum(rng: random.Random, data: bytes) -> bytes:
    return data[:14] + b"%08x" % rng.getrandbits(32) + data[22:]


@_text
def _checksum_in_capitals(rng: random.Random, data: bytes) -> bytes:
    return data[:14] + data[14:22].upper() + data[22:]


@_text
def _line_less(rng: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


@_text
def _line_twice(rng: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    return b"".join([*lines[: at + 1], *lines[at:]])


@_text
def _white_space_more(rng: random.Random, data: bytes) -> bytes:
    at = rng.choice([0, len(data), *(match.start() for match in re.finditer(rb"\n", data))])
    return data[:at] + rng.choice([b" ", b"\n", b"\t"]) + data[at:]


@_text
def _written_anew_by_hand(rng: random.Random, data: bytes) -> bytes:
    import json

    return json.dumps(json.loads(data), indent=rng.choice([None, 2, 4])).encode()


def _header(change: Callable[[random.Random, bytearray], None]) -> None:
    def harm(scene: Scene) -> bool:
        def apply(data: bytearray) -> bytes:
            change(scene.rng, data)
            return data

        return _rewrite(scene.any_file(), apply)

    KINDS.append(Kind(f"header: {change.__name__.strip('_').replace('_', ' ')}", harm))


@_header
def _changed_length(rng: random.Random, data: bytearray) -> None:
    length = int.from_bytes(data[:8], "little")
    other = rng.choice([0, 1, length - 1, length + 1, length + PAGE, length - PAGE, len(data), 2**63, 2**64 - 1])
    data[:8] = (other % 2**64).to_bytes(8, "little")


@_header
def _changed_header_byte(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(8, 8 + int.from_bytes(data[:8], "little"))] ^= rng.randint(1, 255)


@_header
def _changed_header_checksum(rng: random.Random, data: bytearray) -> None:
    data[50:58] = b"%08x" % rng.getrandbits(32)


@_header
def _padding_of_the_header(rng: random.Random, data: bytearray) -> None:
    """The header is padded with spaces; another white space is the same JSON."""
    end = 8 + int.from_bytes(data[:8], "little")
    if data[end - 1] == 32:
        data[end - 1] = 10


# -- other bytes of the same program: stale and misplaced ----------------------------------------


def _same_file(scene: Scene, file: Path, step: Path) -> bytes:
    other = step / file.relative_to(scene.path)
    return other.read_bytes() if other.exists() else b""


@_kind
def _stale_block(scene: Scene) -> bool:
    """A part of the file holds what the previous step had at the same place: a write that was lost."""
    file = scene.any_file()
    old = _same_file(scene, file, scene.previous)
    size = scene.rng.choice([512, PAGE, 1 << 16, 1 << 20])

    def change(data: bytearray) -> bytes:
        at = scene.rng.randrange(-(-len(data) // size)) * size
        end = min(at + size, len(data), len(old))
        data[at:end] = old[at:end]
        return data

    return _rewrite(file, change)


@_kind
def _torn_between_two_steps(scene: Scene) -> bool:
    """The file begins as this step and goes on as the previous one, or the other way round."""
    file = scene.any_file()
    old = _same_file(scene, file, scene.previous)
    at = scene.rng.randrange(max(1, min(len(old), file.stat().st_size))) // 512 * 512
    is_new_first = scene.rng.random() < 0.5
    return _rewrite(file, lambda data: data[:at] + old[at:] if is_new_first else old[:at] + data[at:])


@_kind
def _stale_data_under_a_new_header(scene: Scene) -> bool:
    file = scene.any_file()
    old = _same_file(scene, file, scene.previous)

    def change(data: bytearray) -> bytes | None:
        end = 8 + int.from_bytes(data[:8], "little")
        return data[:end] + old[end : len(data)] if len(old) >= len(data) else None

    return _rewrite(file, change)


def _put(file: Path, data: bytes, rng: random.Random) -> bool:
    """Let a file have these bytes: in its place, or as another file of its name."""
    if not data or file.read_bytes() == data:
        return False
    if rng.random() < 0.5:
        file.unlink()
    file.write_bytes(data)
    return True


@_kind
def _file_of_another_step(scene: Scene) -> bool:
    file = scene.any_file()
    return _put(file, _same_file(scene, file, scene.previous), scene.rng)


@_kind
def _file_of_another_save_of_the_same_values(scene: Scene) -> bool:
    file = scene.any_file()
    return _put(file, _same_file(scene, file, scene.twin / scene.path.name), scene.rng)


@_kind
def _data_of_another_save_under_the_old_manifest(scene: Scene) -> bool:
    done = [_put(f, _same_file(scene, f, scene.twin / scene.path.name), scene.rng) for f in scene.files()]
    return any(done)


@_kind
def _manifest_of_another_step(scene: Scene) -> bool:
    return _put(scene.manifest, _same_file(scene, scene.manifest, scene.previous), scene.rng)


@_kind
def _manifest_of_another_save_of_the_same_values(scene: Scene) -> bool:
    return _put(scene.manifest, _same_file(scene, scene.manifest, scene.twin / scene.path.name), scene.rng)


@_kind
def _swapped_files(scene: Scene) -> bool:
    files = scene.files()
    if len(files) < 2:
        return False
    a, b = scene.rng.sample(files, 2)
    spare = scene.scratch / "swapped"
    shutil.move(a, spare)
    shutil.move(b, a)
    shutil.move(spare, b)
    return True


@_kind
def _one_file_twice(scene: Scene) -> bool:
    files = scene.files()
    if len(files) < 2:
        return False
    a, b = scene.rng.sample(files, 2)
    b.unlink()
    if scene.rng.random() < 0.5:
        os.link(a, b)
    else:
        shutil.copyfile(a, b)
    return True


# -- names ---------------------------------------------------------------------------------------


def _any_entry(scene: Scene) -> Path:
    return scene.rng.choice([scene.manifest, *scene.files()])


@_kind
def _deleted_file(scene: Scene) -> bool:
    _any_entry(scene).unlink()
    return True


@_kind
def _renamed_file(scene: Scene) -> bool:
    entry = _any_entry(scene)
    entry.rename(entry.with_name(scene.rng.choice(["x", entry.name + "~", "." + entry.name, entry.name.upper()])))
    return True


@_kind
def _deleted_data_directory(scene: Scene) -> bool:
    shutil.rmtree(scene.path / layout.DATA)
    return True


@_kind
def _emptied_step(scene: Scene) -> bool:
    shutil.rmtree(scene.path)
    scene.path.mkdir()
    return True


@_kind
def _step_under_another_number(scene: Scene) -> bool:
    scene.path.rename(scene.path.with_name(layout.step_dirname(scene.step + scene.rng.choice([1, 5]))))
    return True


@_kind
def _another_step_under_this_number(scene: Scene) -> bool:
    shutil.rmtree(scene.path)
    shutil.copytree(scene.previous, scene.path)
    return True


def _places(scene: Scene) -> list[Path]:
    return [scene.path, scene.path / layout.DATA, scene.manifest, *scene.files()]


@_kind
def _symbolic_link_to_a_good_copy(scene: Scene) -> bool:
    place = scene.rng.choice(_places(scene))
    moved = scene.scratch / f"elsewhere-{scene.step}"
    shutil.move(place, moved)
    place.symlink_to(moved)
    return True


@_kind
def _symbolic_link_to_another_step(scene: Scene) -> bool:
    place = scene.rng.choice(_places(scene))
    target = scene.previous / place.relative_to(scene.path)
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    place.symlink_to(target)
    return True


@_kind
def _symbolic_link_to_nothing_or_itself(scene: Scene) -> bool:
    place = scene.rng.choice([scene.manifest, *scene.files()])
    place.unlink()
    place.symlink_to(scene.rng.choice(["nothing-here", place.name]))
    return True


@_kind
def _directory_for_a_file(scene: Scene) -> bool:
    entry = _any_entry(scene)
    entry.unlink()
    entry.mkdir()
    return True


@_kind
def _file_for_a_directory(scene: Scene) -> bool:
    place = scene.rng.choice([scene.path, scene.path / layout.DATA])
    shutil.rmtree(place)
    place.write_bytes(b"")
    return True


@_kind
def _pipe_for_a_file(scene: Scene) -> bool:
    entry = _any_entry(scene)
    entry.unlink()
    os.mkfifo(entry)
    return True
