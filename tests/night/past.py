"""Writes the database file of a night: jobs as an import, and beside them what happened before the server started."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.night.script import HOUR_S, TUBES, Night

# As the history numbers its rows: by about the bytes of each.
ROW_BYTES = 100
SERVER = "127.0.0.1:51234"
_INTO_HISTORY = """
    INSERT INTO history (n, at, job, tube, what, by, conn, pri, delay_s, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_INTO_TOTALS = """
    INSERT INTO totals
        (span_s, at, tube, put, reserved, deleted, released, timed_out, buried, kicked, waited_s, held_s)
    VALUES (3600, ?, ?, ?, ?, ?, 0, 0, 0, 0, ?, ?)
"""


def write(night: Night, folder: Path) -> Path:
    """Write the file into a folder; return its path."""
    lines = folder / "night.jsonl"
    with lines.open("w") as export:
        export.writelines(json.dumps(line) + "\n" for line in lines_of(night))
    database = folder / "beanlite.db"
    subprocess.run([sys.executable, "-m", "beanlite", "import", str(lines), "--db", str(database)], check=True)
    lines.unlink()
    with contextlib.closing(sqlite3.connect(database)) as file, file:
        # The triggers that keep other programs from writing name it.
        file.create_function("only_the_beanlite_server_may_write", 0, lambda: 1)
        file.executemany(_INTO_HISTORY, history(night))
        file.executemany(_INTO_TOTALS, totals(night))
    return database


def lines_of(night: Night) -> list[dict[str, Any]]:
    """Return what is in the file, as lines of an import."""
    now = night.begins_at
    held_for_long = {"mail", "orders"}
    lines: list[dict[str, Any]] = []
    burials = 0
    for job in sorted(night.present, key=lambda job: -job.in_state_s):
        ttr_s = 7200 if job.tube in held_for_long else 600
        line: dict[str, Any] = {
            "kind": "job", "id": job.id, "tube": job.tube, "state": job.state, "pri": job.pri, "delay_s": 0,
            "ttr_s": ttr_s, "created_at": now - job.age_s, "reserves": job.reserves, "timeouts": 0,
            "releases": job.releases, "buries": job.buries, "kicks": 0,
            "since": now - job.in_state_s, "body": json.dumps(job.body),
        }  # fmt: skip
        if job.state == "delayed":
            line |= {"due_at": now + job.due_s, "delay_s": round(job.in_state_s + job.due_s)}
        elif job.state == "buried":
            burials += 1
            line |= {"buried_seq": burials, "why": job.why}
        if job.note is not None:
            line["note"] = job.note
        lines.append(line)
    for act in night.acts:
        if act.what == "pause":
            lines.append({
                "kind": "pause", "tube": act.tube, "pause_s": act.delay_s, "until": now - act.ago_s + act.delay_s,
            })  # fmt: skip
        elif act.what == "policy":
            lines.append(_policy(act.tube, act.body or "", now - act.ago_s, act.by))
    lines.append(_policy("webhooks", "max_tries=3", now - 200 * HOUR_S, "ann"))
    return lines


def _policy(pattern: str, setting: str, changed_at: float, by: str) -> dict[str, Any]:
    key, value = setting.split("=")
    return {
        "kind": "policy", "pattern": pattern, "key": key, "value": value, "changed_at": changed_at, "changed_by": by,
    }  # fmt: skip


def history(night: Night) -> list[tuple[Any, ...]]:
    """Return rows of what happened: the puts of jobs that were deleted, and what operators did."""
    now = night.begins_at
    bodies = {job.id: json.dumps(job.body) for job in night.deleted}
    rows: list[tuple[Any, ...]] = [
        (job.age_s, job.id, job.tube, "put", f'{SERVER} "shop1/exports/88"', 7, 1024, 0, None) for job in night.deleted
    ]
    for act in night.acts:
        body = bodies.get(act.job, act.body)
        by = f"operator {SERVER} for {act.by}"
        pri = 1024 if act.job else 0
        rows.append((act.ago_s, act.job, act.tube, act.what, by, 9, pri, act.delay_s, body and body.encode()))
    rows.sort(key=lambda row: -row[0])
    return [(ROW_BYTES * place, now - ago_s, *rest) for place, (ago_s, *rest) in enumerate(rows, 1)]


def totals(night: Night) -> list[tuple[Any, ...]]:
    """Return rows of what came and went in each of the last hours."""
    this_hour = int(night.begins_at) // HOUR_S * HOUR_S
    return [
        (at, tube.name, coming := round(HOUR_S * tube.coming), going := round(HOUR_S * min(tube.coming, tube.going)),
         going, coming * 0.4, going * 0.2)
        for tube in TUBES
        for at in range(this_hour - 9 * HOUR_S, this_hour, HOUR_S)
    ]  # fmt: skip
