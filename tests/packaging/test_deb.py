"""The Debian package: built, installed, used and purged, on a copy of this machine that is thrown away.

The copy is an overlay whose upper layer is in memory, in a mount namespace of its own: whatever dpkg does ends there.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# Below /mnt, so that nothing of /tmp is in the way; the folder itself is the namespace's own.
IN_A_COPY = """
set -e
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work /mnt/root
cp "$1" /mnt/beanlite.deb
cp "$2" /mnt/script
mount -t overlay none -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
mount -t proc none /mnt/root/proc
mount -t tmpfs none /mnt/root/run
mount -t tmpfs none /mnt/root/tmp
mount -t tmpfs none /mnt/root/dev
mknod -m 666 /mnt/root/dev/null c 1 3
mknod -m 666 /mnt/root/dev/urandom c 1 9
mv /mnt/beanlite.deb /mnt/script /mnt/root/tmp
exec chroot /mnt/root sh -e /tmp/script
"""


def allows_a_copy():
    """Whether this machine lets root mount an overlay of it."""
    if shutil.which("unshare") is None:
        return False
    mounts = "mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w /mnt/r"
    mounts += " && mount -t overlay none -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/r"
    return subprocess.run(["unshare", "--mount", "sh", "-c", mounts], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.nightly,  # the package is built in half a minute
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can install packages"),
    pytest.mark.skipif(not allows_a_copy(), reason="no overlay of this machine can be mounted"),
]

USES = """
unset PYTHONPATH
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
dpkg -i /tmp/beanlite.deb >&2
beanlite --version
beanlite config --config /etc/beanlite/beanlite.toml --check
stat -c '%U %a %n' /var/lib/beanlite
grep '^Exec\\|^Type' /lib/systemd/system/beanlite.service
zcat /usr/share/man/man1/beanlite-backup.1.gz | grep -c 'Copy a database'
bash -n /usr/share/bash-completion/completions/beanlite
cd /var/lib/beanlite
setpriv --reuid beanlite --regid beanlite --clear-groups \
    timeout --preserve-status --signal=TERM 4 beanlite serve --config /etc/beanlite/beanlite.toml --port 0
setpriv --reuid beanlite --regid beanlite --clear-groups beanlite verify /var/lib/beanlite/beanlite.db
dpkg -r beanlite >&2
ls /etc/beanlite
test ! -e /usr/lib/beanlite
dpkg -P beanlite >&2
test ! -e /etc/beanlite
ls /var/lib/beanlite
"""


def test_it_is_installed_used_and_purged(package, tmp_path):
    script = tmp_path / "script"
    script.write_text(USES)
    command = ["unshare", "--mount", "sh", "-c", IN_A_COPY, "sh", package, script]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("beanlite ")
    assert "beanlite 700 /var/lib/beanlite" in lines
    assert "ExecStart=/usr/bin/beanlite serve --config /etc/beanlite/beanlite.toml" in lines
    assert "stopped jobs=0" in ran.stderr
    assert lines[-2:] == ["beanlite.toml", "beanlite.db"]  # the settings go with the purge, the jobs stay
    assert not Path("/usr/lib/beanlite").exists()


def test_nothing_in_it_names_the_folder_in_which_it_was_built(package):
    files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    assert b"/tmp/tmp." not in files
