"""Who may give operators' commands."""

import pytest

from beanlite.net.operators import Operators
from beanlite.settings import config

DEFAULT = config.Settings().operators


@pytest.mark.parametrize(
    ("setting", "peer", "may"),
    [
        (DEFAULT, ("127.0.0.1", 1), True),
        (DEFAULT, ("127.9.9.9", 1), True),
        (DEFAULT, ("::1", 1, 0, 0), True),
        (DEFAULT, ("::ffff:127.0.0.1", 1, 0, 0), True),
        (DEFAULT, "", True),  # a Unix socket
        (DEFAULT, None, False),  # a client that is gone already
        (DEFAULT, ("10.0.0.1", 1), False),
        (DEFAULT, ("::2", 1, 0, 0), False),
        (DEFAULT, ("::ffff:10.0.0.1", 1, 0, 0), False),
        ("none", ("127.0.0.1", 1), False),
        ("none", "", False),
        ("10.0.0.0/8,fe80::/10", ("10.1.2.3", 1), True),
        ("10.0.0.0/8,fe80::/10", ("fe80::1%eth0", 1, 0, 2), True),
        ("10.0.0.0/8,fe80::/10", ("127.0.0.1", 1), False),
        ("10.0.0.0/8,fe80::/10", "", False),
    ],
)
def test_operators_setting_admits_the_addresses_it_names(setting, peer, may):
    assert Operators(setting).include(peer) == may
