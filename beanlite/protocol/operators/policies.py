"""Operators' commands that set and list policies. ``docs/protocol.md`` describes them and their replies."""

from typing import Final

from beanlite.core.access import READER
from beanlite.core.applying import GLOBS_PER_JOB
from beanlite.core.kept import EXPIRY_BYTES, KEPT_BYTES, TWIN_BYTES
from beanlite.core.policies import KEYS, OFF, Policies, PolicyRow, is_glob
from beanlite.core.policy_changes import Wishes, changed, changes_of, texts_of, warnings
from beanlite.core.ruled import more_bytes
from beanlite.core.tube import Peer
from beanlite.protocol.batches import on_behalf_of
from beanlite.protocol.operators.replies import Record, as_json
from beanlite.protocol.operators.requests import ListPolicies, PolicyChange, Refused, SetPolicy
from beanlite.protocol.session import Service, Session

# To find the rules of more tubes, counted as when these are applied, would take long.
_COST_MANY: Final = 5000
_BOTH: Final = "{} is both set and unset for {}"


def set_policy(session: Session, request: SetPolicy, now_ns: int) -> bytes:
    service = session.service
    if service.policies_file is not None and not request.dry_run:
        raise Refused(f"policies come from {service.policies_file}: change that file, and send the server SIGHUP")
    before = values_of(service)
    keys: dict[bytes, list[str]] = {}
    for pattern, key in before:
        keys.setdefault(pattern, []).append(key)
    wishes: dict[tuple[bytes, str], str | None] = {}
    for change in request.changes():
        for each, value in _wishes_of(change, keys.get(change.pattern, [])).items():
            if each in wishes:
                raise Refused(f"{change.pattern.decode()} stands there twice with {each[1]}")
            wishes[each] = value
    if request.prune:
        wishes.update({each: None for each in before if each not in wishes})
    try:
        changes = changes_of(before, wishes)
        check_memory(service, changes)
    except ValueError as why:
        raise Refused(str(why)) from None
    if not request.dry_run:
        session.waits = True
        carry_out(service, changes, on_behalf_of(request.by, session), now_ns)
    records: list[Record] = [
        {"pattern": each[0].decode(), "key": each[1], "value": value, "before": before.get(each)}
        for each, value in changes.items()
    ]
    odd = warnings(changed(before, changes), [pattern for pattern, _ in wishes])
    return session.ok_reply(as_json({"changes": records, "warnings": odd}))


def check_memory(service: Service, changes: Wishes) -> None:
    """Raise ValueError, in words for the operator, if tubes would have to know more than there is memory for."""
    needed_bytes = _needed_bytes(service, changes)
    if needed_bytes > max(0, service.engine.memory.free_bytes):
        raise ValueError(f"what tubes have to know can take {needed_bytes} bytes more, and max_memory is too small")


def _needed_bytes(service: Service, changes: Wishes) -> int:
    """Return how many bytes more are taken after a change; if it may concern many tubes, the most that it can be."""
    engine, before = service.engine, values_of(service)
    after = Policies()
    after.change([PolicyRow(*each, value, 0.0, "") for each, value in changed(before, changes).items()])
    patterns = {pattern for pattern, _ in changes}
    names = list(engine.tubes) if any(map(is_glob, patterns)) else [name for name in patterns if name in engine.tubes]
    if len(names) * (1 + after.globs // GLOBS_PER_JOB) <= _COST_MANY:
        return sum(more_bytes(engine.tubes[name], after.rules_of(name)) for name in names)
    # Tubes come to have a key where it was not set, or off. With another ttl, they know jobs again.
    keys = {
        each[1]
        for each, value in changes.items()
        if value != OFF and (before.get(each, OFF) == OFF or (each[1] == "ttl" and value is not None))
    }
    counts, jobs = engine.counts, len(engine.jobs)
    needed_bytes = (len(engine.tubes) - counts.ruled_tubes) * KEPT_BYTES if keys else 0
    if "unique" in keys:
        needed_bytes += (jobs - counts.twins) * TWIN_BYTES
    if "ttl" in keys:
        needed_bytes += (jobs - counts.expiries) * EXPIRY_BYTES
    return needed_bytes


def values_of(service: Service) -> dict[tuple[bytes, str], str]:
    """Return the values of all policies."""
    return {each: row.value for each, row in service.engine.policies.rows.items()}


def carry_out(service: Service, changes: Wishes, by: Peer, now_ns: int) -> None:
    """Carry out changes that ``changes_of`` has returned, and record them."""
    if not changes:
        return
    engine, who = service.engine, by.person or by.address
    at = round(service.utc_s(now_ns), 6)
    rows = [PolicyRow(*each, value, at, who) for each, value in changes.items() if value is not None]
    engine.set_policies(rows, [each for each, value in changes.items() if value is None], now_ns)
    texts = texts_of(changes)
    for pattern, text in texts.items():
        engine.ledger.record_policy(pattern, text.encode(), by, now_ns)
    service.policies_changed(who, texts)


def _wishes_of(change: PolicyChange, all_keys: list[str]) -> dict[tuple[bytes, str], str | None]:
    """Return the value that each key is to have, None if it is to be unset; ``all_keys``: those of the pattern."""
    pattern, values = change.pattern, change.set or {}
    if isinstance(change.unset, list):
        both = [key for key in change.unset if key in values]
        if both:
            raise Refused(_BOTH.format(both[0], pattern.decode()))
        keys = change.unset
    else:
        keys = [] if change.unset is None else all_keys
    wishes: dict[tuple[bytes, str], str | None] = {(pattern, key): value for key, value in values.items()}
    wishes.update({(pattern, key): None for key in keys if key not in values})
    return wishes


def list_policies(session: Session, request: ListPolicies, _now_ns: int) -> bytes:
    policies = session.engine.policies
    if request.tube is None:
        rights = session.rights
        rows = [policies.rows[each] for each in sorted(policies.rows) if rights is None or rights.may(READER, each[0])]
    else:
        effective = policies.effective(request.tube)
        rows = [effective[key] for key in KEYS if key in effective]
    records = [{**row._asdict(), "pattern": row.pattern.decode()} for row in rows]
    return session.ok_reply(as_json({"policies": records, "file": session.service.policies_file}))
