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
cp "$3" /mnt/ask.py
mount -t overlay none -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
mount -t proc none /mnt/root/proc
mount -t tmpfs none /mnt/root/run
mount -t tmpfs none /mnt/root/tmp
mount -t tmpfs none /mnt/root/dev
mknod -m 666 /mnt/root/dev/null c 1 3
mknod -m 666 /mnt/root/dev/urandom c 1 9
mv /mnt/beanlite.deb /mnt/script /mnt/ask.py /mnt/root/tmp
ip link set lo up
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

# Start the server with the settings of the package, print the status and the title of its page, and stop the server.
asked() { # HOST:PORT LOGIN
    setpriv --reuid beanlite --regid beanlite --clear-groups beanlite serve --config /etc/beanlite/beanlite.toml &
    server=$!
    /usr/lib/beanlite/bin/python /tmp/ask.py "$@"
    kill $server
    wait $server
}

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
sed -i 's/^# web = /web = /' /etc/beanlite/beanlite.toml
asked 127.0.0.1:11380 ''
echo horse | beanlite web --add-user ann:operator >/etc/beanlite/users
chgrp beanlite /etc/beanlite/users
chmod 640 /etc/beanlite/users
sed -i 's/^web = .*/web = "0.0.0.0:11380"/; s/^# web_password_file = /web_password_file = /' /etc/beanlite/beanlite.toml
asked 127.0.0.1:11380 ''
asked 127.0.0.1:11380 ann:horse
rm /etc/beanlite/users
dpkg -r beanlite >&2
ls /etc/beanlite
test ! -e /usr/lib/beanlite
chmod 750 /var/lib/beanlite
enabled() {
    ls /etc/systemd/system/*.wants | grep beanlite || echo nothing
}
dpkg -i /tmp/beanlite.deb >&2
echo installed again: $(enabled), $(stat -c %a /var/lib/beanlite)
systemctl disable beanlite.service
systemctl enable beanlite@one.service beanlite-backup.timer
dpkg -r beanlite >&2
dpkg -i /tmp/beanlite.deb >&2
echo disabled: $(enabled)
dpkg -r beanlite >&2
dpkg -P beanlite >&2
echo purged: $(enabled)
test ! -e /etc/beanlite
ls /var/lib/beanlite
"""


SEEN = "page 200 Overview · beanlite"


def test_it_is_installed_used_and_purged(package, tmp_path):
    script = tmp_path / "script"
    script.write_text(USES)
    apart = [
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
    ]  # a server that is left over ends with it
    command = [*apart, "sh", "-c", IN_A_COPY, "sh", package, script, Path(__file__).with_name("ask.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("beanlite ")
    assert "beanlite 700 /var/lib/beanlite" in lines
    assert "ExecStart=/usr/bin/beanlite serve --config /etc/beanlite/beanlite.toml" in lines
    assert "stopped jobs=0" in ran.stderr
    assert [line for line in lines if line.startswith("page ")] == [SEEN, "page 401", SEEN]
    assert [line for line in lines if line.startswith(("installed again", "disabled", "purged"))] == [
        "installed again: beanlite.service, 750",
        "disabled: beanlite@one.service beanlite-backup.timer",
        "purged: nothing",
    ]
    assert "beanlite.toml" in lines
    assert lines[-1] == "beanlite.db"  # the settings go with the purge, the jobs stay
    assert not Path("/usr/lib/beanlite").exists()


def test_nothing_in_it_names_the_folder_in_which_it_was_built(package):
    files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    assert b"/tmp/tmp." not in files
