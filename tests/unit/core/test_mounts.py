"""The kernel's table of mounts: which of them a directory is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcckpt.core.mounts import mount_of

TABLE = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /data rw,relatime shared:2 - autofs /etc/auto.data rw,direct
31 30 0:31 / /data rw,relatime shared:3 master:7 - nfs4 server:/data rw,vers=4.2
32 31 0:32 / /data/with\040space rw,relatime - tmpfs none rw
33 22 8:2 / /database rw,relatime - xfs /dev/sdb1 rw
no mount at all
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home", "ext4"),
        ("/data", "nfs4"),  # mounted over what the automounter has there
        ("/data/run", "nfs4"),
        ("/data/with space/run", "tmpfs"),
        ("/database", "xfs"),
    ],
)
def test_a_directory_is_in_the_mount_that_is_on_top(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "mountinfo").write_text(TABLE)
    found = mount_of(Path(path), tmp_path / "mountinfo")
    assert found is not None
    assert found.type == kind


def test_without_a_table_nothing_is_known(tmp_path: Path) -> None:
    assert mount_of(Path("/"), tmp_path / "mountinfo") is None
