"""Policies and schedules as operators set them, without the commands that set them."""

from typing import Any

from beanlite.core.policies import OFF, Policies, PolicyRow, check_row, is_glob
from beanlite.core.schedules import Schedule

AT_S = 1795383356.25
FACTS = (
    "name", "when", "zone", "tube", "body", "pri", "ttr_s", "if_absent", "once_if_missed", "next_at", "changed_at",
    "changed_by", "last_at", "last_job",
)  # fmt: skip


def policy(pattern, key, value, changed_at=AT_S, changed_by="10.0.0.1:1 for änn"):
    """Return a policy that was set; the pattern is a text."""
    return PolicyRow(pattern.encode(), key, value, changed_at, changed_by)


def schedule(name, **others):
    """Return a schedule that has put a job; ``others`` are attributes with other values."""
    values: dict[str, Any] = {
        "when": "0 3 * * *",
        "zone": "Europe/Berlin",
        "tube": b"reports",
        "body": b"\xff body",
        "pri": 7,
        "ttr_s": 60,
        "if_absent": True,
        "once_if_missed": False,
        "next_at": AT_S + 100,
        "changed_at": AT_S,
        "changed_by": "ann",
        "last_at": AT_S + 1 / 3,
        "last_job": 5,
    }
    return Schedule(name, **values | others)


def set_policies(engine, *policies, unset=()):
    """Set policies, and remove others by pattern and key, for what stores them: nothing else hears of it."""
    engine.policies.change(policies, unset)
    engine.ledger.policies.update(dict.fromkeys(unset))
    engine.ledger.policies.update({(each.pattern, each.key): each for each in policies})


def set_schedules(engine, *schedules):
    """Set schedules, as an operator's request does."""
    for each in schedules:
        engine.schedules[each.name] = engine.ledger.schedules[each.name] = each


def unset_schedule(engine, name):
    """Remove a schedule, likewise."""
    del engine.schedules[name]
    engine.ledger.schedules[name] = None


def told(engine):
    """Return all policies and schedules that a server knows."""
    return sorted(engine.policies.rows.values()), {name: facts(each) for name, each in engine.schedules.items()}


def facts(schedule):
    """Return what a schedule says and has done, by name."""
    return {name: getattr(schedule, name) for name in FACTS}


def policies_by_chance(chance, count):
    """Return policies with patterns that often match the same tubes, and the names of tubes."""
    letters = "ab-_.$(+)/;"

    def text(some):
        first, *rest = (chance.choice(some) for _ in range(chance.randrange(1, 6)))
        return "".join(["a" if first == "-" else first, *rest])

    rows = {}
    for _ in range(count):
        pattern, key = text(letters[:4] + "**??"), chance.choice(["ttl", "max_tries", "rate"])
        values = {"ttl": ["1h", "2h", "off"], "max_tries": ["1", "2", "off"], "rate": ["1/s", "off"]}[key]
        rows[pattern, key] = policy(pattern, key, chance.choice(values))
    names = {text(letters[:4]) for _ in range(count)} | {text(letters) for _ in range(count // 4)}
    return list(rows.values()), sorted(names)


def effective(policies, names):
    """Return what holds for each of these tubes and of those that policies name, as the view tube_policies has it."""
    all_of_them = Policies()
    all_of_them.change(policies)
    names = {name.encode() for name in names} | {each.pattern for each in policies if not is_glob(each.pattern)}
    return sorted(
        (name.decode(), key, row.value, row.pattern.decode())
        for name in names
        for key, row in all_of_them.effective(name).items()
        if row.value != OFF
    )


def set_policy(core, pattern, **values):
    """Set the values of a policy, as an operator does."""
    rows = [PolicyRow(pattern, key, value, 947_000_000.0, "ann") for key, value in values.items()]
    for row in rows:
        check_row(*row[:3])
    core.engine.set_policies(rows, [], core.now_ns)
