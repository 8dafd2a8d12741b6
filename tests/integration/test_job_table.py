"""The SQL tables do what the job table of the property tests does, on SQLite and on a PostgreSQL server (SPEC H3)."""

import contextlib
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.event import listen
from tests.postgres_server import postgres
from tests.property.job_world import MemoryTable

from headway.adapters.gateway.job_ports import Held, IdempotencyKey, JobQuery, UsageQuery
from headway.adapters.gateway.queue_ports import Hold, QueueLine, QueueView
from headway.adapters.jobs.answers import AnswerTable, InUse
from headway.adapters.jobs.clients import ClientTable
from headway.adapters.jobs.connect import Database, downgrade, upgrade
from headway.adapters.jobs.evidence import ATTEMPTS_MAX, EvidenceTable
from headway.adapters.jobs.lapsed import Lapsed
from headway.adapters.jobs.outbox import Outbox
from headway.adapters.jobs.outputs import StoredOutput, read_json
from headway.adapters.jobs.places import Places
from headway.adapters.jobs.queue import Queue
from headway.adapters.jobs.records import NewRecord
from headway.adapters.jobs.table import JobInput, NodeTable, Retention
from headway.adapters.jobs.tables import metadata
from headway.adapters.jobs.usage import Spent, UsageTable
from headway.core.artifacts import PromptRead
from headway.core.decisions import Decision
from headway.core.errors import CapacityError, ConfigError, RequestError
from headway.core.evidence import EvidenceRecord, FrontMarks, evidence_record
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.job_effects import (
    ClaimRow,
    CompleteRow,
    FailRow,
    KeepRow,
    KeepRows,
    RequeueRow,
    SaveCheckpoint,
    SpareRow,
    WatchRows,
)
from headway.core.jobs import JobRow, JobState
from headway.core.units import NS_PER_S

S: Final = NS_PER_S
READ: Final = PromptRead(16, ("`prompt` has 40 tokens ...",))
DAY: Final = 24 * 3600 * S
RETENTION: Final = Retention(10 * S, 20 * S)
Open = Callable[[], Database]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    found: str = request.getfixturevalue("server")
    return found


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """An empty one."""
    opened = Database(url)
    if not opened.is_sqlite:
        with opened.engine.begin() as connection:
            connection.execute(text(f"TRUNCATE {', '.join(metadata.tables)} CASCADE"))
    yield opened
    opened.close()


def new(job: str, **changes: object) -> NewRecord:
    made = NewRecord(job, "video", "acme", "wan", 10, b"request", b'{"prompt": "a cat"}', estimate_ns=10 * S)
    return msgspec.structs.replace(made, **changes)


def tables(database: Database, owner: str = "gw-1") -> tuple[NodeTable, ClientTable]:
    return NodeTable(database, owner, RETENTION), ClientTable(database, RETENTION, 100)


def taken(node: NodeTable, job: str, at_ns: int = 0, attempt: int = 0) -> JobRow:
    """Claimed and begun; as it was claimed."""
    row = node.claim(ClaimRow(RequestId(job), attempt, at_ns + 15 * S), at_ns)
    assert row is not None
    assert node.begin(row.job, row.attempt) is not None
    return row


def keep(node: NodeTable, row: KeepRow) -> bool:
    """A heartbeat alone."""
    return node.keep(KeepRows((row,), 30 * S)) == []


def complete(node: NodeTable, job: str, attempt: int = 1, at_ns: int = 0) -> bool:
    made = [
        StoredOutput("video", 0, "video/mp4", 100, f"{job}/video", 7, read_json(READ)),
        StoredOutput("thumbnail", 0, "image/webp", 9, "k"),
    ]
    return node.complete(CompleteRow(RequestId(job), attempt, 3 * S, 0, 48), made, at_ns)


def test_answers_like_the_table_of_the_property_tests(database: Database) -> None:
    """Random claims, heartbeats, checkpoints, ends, cancels and pauses of two owners; every answer and row is equal."""
    rng = random.Random(7)
    model, clients, places = MemoryTable(), ClientTable(database, RETENTION, 1000), Places(database)
    nodes = {owner: NodeTable(database, owner, RETENTION) for owner in ("gw-1", "gw-2")}
    now_ns = 0
    for number in range(6):
        record, row = clients.insert(new(f"job-{number}", urgency=number % 2, tenant="t", model="m"), now_ns + number)
        assert row is not None
        stored = JobRow(
            RequestId(record.id),
            TenantId("t"),
            ModelId("m"),
            10,
            now_ns + number,
            0,
            urgency=number % 2,
            estimate_ns=10 * S,
        )
        model.insert(stored)
        model.rows[stored.job].row = msgspec.structs.replace(stored, position=row.position)
    for _ in range(200):
        now_ns += rng.choice((0, S // 2, 2 * S))
        owner, job = rng.choice(("gw-1", "gw-2")), RequestId(f"job-{rng.randrange(6)}")
        attempt = max(0, model.rows[job].row.attempt - rng.choice((0, 0, 0, 1)))
        node, until_ns = nodes[owner], now_ns + 4 * S
        state: JobState = rng.choice(("text_encode", "denoise"))
        match rng.randrange(10):
            case 0 | 1:
                claim = ClaimRow(job, attempt, until_ns)
                assert node.claim(claim, now_ns) == model.claim(claim, owner, now_ns)
                if rng.random() < 0.7:
                    begun = node.begin(job, model.rows[job].row.attempt) is not None
                    assert begun == model.begin(job, model.rows[job].row.attempt, owner)
            case 2:
                others = rng.sample(sorted(model.rows), 3)
                beats = [KeepRow(one, model.rows[one].row.attempt, state, rng.randrange(11)) for one in others]
                keeps = KeepRows(
                    (KeepRow(job, attempt, "upload", 3), *[one for one in beats if one.job != job]), until_ns
                )
                assert node.keep(keeps) == model.keep(keeps, owner)
            case 3:
                save = SaveCheckpoint(job, attempt, until_ns, rng.randrange(1, 10), "key", S)
                assert node.checkpoint(save) == model.checkpoint(save, owner)
            case 4:
                later_ns, forgets = now_ns + rng.choice((0, 3 * S)), rng.random() < 0.2
                back = RequeueRow(job, attempt, later_ns, rng.random() < 0.5, "why", forgets)
                assert node.requeue(back) == model.requeue(back, owner)
                if rng.random() < 0.3:
                    spare = SpareRow(job, attempt)
                    node.spare(spare)
                    model.spare(spare, owner)
            case 5 if rng.random() < 0.1:
                done = CompleteRow(job, attempt, S, 1, 0)
                assert node.complete(done, (), now_ns) == model.complete(done, owner)
            case 5 if rng.random() < 0.1:
                fail = FailRow(job, attempt, "failed", "code", "message", failures=rng.randrange(4))
                assert node.fail(fail, now_ns) == model.fail(fail, owner)
            case 6 if model.rows[job].state not in ("completed", "failed", "cancelled"):
                model.pause(job, now_ns)
                places.pause(job, None, now_ns)
            case 7 if model.rows[job].state not in ("completed", "failed", "cancelled"):
                model.resume(job)
                places.resume(job, None)
            case 8 if rng.random() < 0.02:
                model.cancel(job)
                clients.cancel(job, None, now_ns)
            case 9:
                watch = WatchRows(tuple((row.row.job, row.row.attempt) for row in model.rows.values()))
                expected = model.watch(watch, owner)
                assert node.watch(watch) == (expected.lost, expected.saves)
            case _:
                pass
        assert node.claimable(3, now_ns) == model.claimable(3, now_ns)
        found = clients.find(job, None)
        assert found is not None
        assert (found.state, found.done) == (model.rows[job].state, model.rows[job].done)


# SPEC H3
def test_two_gateways_claim_one_row_once(database: Database) -> None:
    one, clients = tables(database, "gw-1")
    other, _ = tables(database, "gw-2")
    clients.insert(new("job-1"), 0)
    claim = ClaimRow(RequestId("job-1"), 0, 15 * S)
    assert [one.claim(claim, 0) is None, other.claim(claim, 0) is None] == [False, True]


def test_a_lease_that_is_over_may_be_taken_and_the_old_owner_writes_nothing_more(database: Database) -> None:
    one, clients = tables(database, "gw-1")
    other, _ = tables(database, "gw-2")
    clients.insert(new("job-1"), 0)
    taken(one, "job-1")
    assert other.claim(ClaimRow(RequestId("job-1"), 1, 31 * S), 15 * S) is None
    taken(other, "job-1", 16 * S, attempt=1)
    assert not keep(one, KeepRow(RequestId("job-1"), 1, "denoise", 5))
    assert not complete(one, "job-1", 1)
    assert complete(other, "job-1", 2)


# SPEC H3
def test_a_slow_owner_takes_its_attempt_off_the_count_and_nobody_elses(database: Database) -> None:
    one, clients = tables(database, "gw-1")
    other, _ = tables(database, "gw-2")
    clients.insert(new("job-1"), 0)
    first = taken(one, "job-1")
    assert taken(other, "job-1", 16 * S, attempt=1).failures == 1
    assert other.requeue(RequeueRow(first.job, 2, 0, False, "it broke"))
    assert [row.failures for row in one.claimable(1, 17 * S)[0]] == [2]
    for _ in range(3):  # the answer was lost, and it asks again
        one.spare(SpareRow(first.job, 1))
        assert [row.failures for row in one.claimable(1, 17 * S)[0]] == [1]


# SPEC H3
def test_an_attempt_that_its_queue_took_away_is_forgiven_once(database: Database) -> None:
    """By the one who took it: that of who ran it, once it has stopped, forgives no other one."""
    node, clients = tables(database)
    clients.insert(new("job-1"), 0)
    assert node.requeue(RequeueRow(taken(node, "job-1").job, 1, 0, False, "it broke"))
    taken(node, "job-1", attempt=1)
    assert Queue(database).hold("*", "stop", S) == [(RequestId("job-1"), 2)]
    node.spare(SpareRow(RequestId("job-1"), 2))
    Queue(database).release("*")
    assert [row.failures for row in node.claimable(1, S)[0]] == [1]


# SPEC H3
def test_a_claim_counts_as_a_failure_once_its_work_has_begun_and_not_before(database: Database) -> None:
    """Its answer is lost, or its gateway dies before any work: the lease runs out, and nothing has failed."""
    one, clients = tables(database, "gw-1")
    other, _ = tables(database, "gw-2")
    clients.insert(new("job-1"), 0)
    for attempt in range(9):
        assert one.claim(ClaimRow(RequestId("job-1"), attempt, 15 * S), 0) is not None
        Lapsed(database, RETENTION, "gw-2").expire(0, 16 * S)
    assert [row.failures for row in other.claimable(1, 16 * S)[0]] == [0]
    claimed = other.claim(ClaimRow(RequestId("job-1"), 9, 31 * S), 16 * S)
    assert claimed is not None
    assert one.begin(claimed.job, 9) is None  # it has lost the row
    assert [other.begin(claimed.job, 10), other.begin(claimed.job, 10)] == [JobInput(b"request")] * 2
    assert [row.failures for row in one.claimable(1, 32 * S)[0]] == [1]


# SPEC H3
def test_heartbeats_of_all_jobs_are_one_statement_and_exactly_the_losers_are_told(database: Database) -> None:
    one, clients = tables(database, "gw-1")
    other, _ = tables(database, "gw-2")
    jobs = [f"job-{number:02}" for number in range(20)]
    for number, job in enumerate(jobs):
        clients.insert(new(job), number)
        taken(one, job)
    for job in jobs[::5]:
        taken(other, job, 16 * S, attempt=1)
    clients.cancel("job-07", None, 16 * S)
    said: list[str] = []
    listen(database.engine, "before_cursor_execute", lambda *call: said.append(call[2]))
    commits: list[object] = []
    listen(database.engine, "commit", commits.append)
    beats = tuple(KeepRow(RequestId(job), 1, "denoise", number % 10) for number, job in enumerate(jobs))
    lost = one.keep(KeepRows(beats, 40 * S))
    assert [words.split()[0] for words in said if not words.startswith("BEGIN")] == ["UPDATE"]
    assert len(commits) == 1
    assert lost == [(job, 1) for job in ("job-00", "job-05", "job-07", "job-10", "job-15")]
    theirs = tuple(KeepRow(RequestId(job), 2, "denoise", 1) for job in jobs[::5])
    assert other.keep(KeepRows(theirs, 40 * S)) == []
    assert [record.done for record in map(clients.find, jobs[:4], [None] * 4) if record is not None] == [1, 1, 2, 3]
    assert one.claimable(9, 39 * S)[0] == []


# SPEC H3
def test_transactions_of_two_gateways_that_wait_for_each_other_are_both_done(server: str) -> None:
    """PostgreSQL ends one of them for the deadlock, and that one is tried again."""
    both = threading.Barrier(2)
    is_first = threading.local()

    def keep_two(jobs: tuple[str, str]) -> int:
        database = Database(server)

        def work(connection: Connection) -> None:
            connection.execute(text("UPDATE jobs SET done = done + 1 WHERE id = :job"), {"job": jobs[0]})
            if not hasattr(is_first, "over"):
                is_first.over = True
                both.wait(timeout=60)
            connection.execute(text("UPDATE jobs SET done = done + 1 WHERE id = :job"), {"job": jobs[1]})

        database.run(work)
        found = ClientTable(database, RETENTION, 9).find(jobs[0], None)
        database.close()
        return 0 if found is None else found.done

    first = Database(server)
    with first.engine.begin() as connection:
        connection.execute(text("TRUNCATE jobs CASCADE"))
    clients = ClientTable(first, RETENTION, 9)
    for job in ("job-1", "job-2"):
        clients.insert(new(job), 0)
    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(keep_two, (("job-1", "job-2"), ("job-2", "job-1"))))
    first.close()
    assert max(done) == 2


# SPEC H3
def test_a_job_is_not_given_up_where_one_of_its_failures_was_a_slow_owner(database: Database) -> None:
    one, clients = tables(database, "gw-1")
    other, _ = tables(database, "gw-2")
    clients.insert(new("job-1"), 0)
    first = taken(one, "job-1")
    taken(other, "job-1", 16 * S, attempt=1)
    one.spare(SpareRow(first.job, 1))
    assert other.fail(FailRow(first.job, 2, "lost", "lost", "attempt 2 of 2", failures=2), 17 * S)
    assert [(row.job, row.failures) for row in one.claimable(1, 17 * S)[0]] == [("job-1", 1)]


# SPEC H3
def test_a_claim_that_is_asked_again_by_its_owner_is_the_same_claim(database: Database) -> None:
    one, clients = tables(database, "gw-1")
    other, _ = tables(database, "gw-2")
    clients.insert(new("job-1"), 0)
    claims = [one.claim(ClaimRow(RequestId("job-1"), 0, until_ns), 0) for until_ns in (15 * S, 16 * S)]
    assert claims[0] is not None
    assert claims[0] == claims[1]
    assert other.claim(ClaimRow(RequestId("job-1"), 0, 20 * S), 2 * S) is None
    assert other.claim(ClaimRow(RequestId("job-1"), 1, 20 * S), 15 * S) is None  # the lease runs from the second


# SPEC H3
def test_a_look_for_silent_owners_takes_no_row_from_its_own_process(database: Database) -> None:
    node, clients = tables(database)
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    assert Lapsed(database, RETENTION, "gw-1").expire(DAY, DAY) == []
    assert keep(node, KeepRow(RequestId("job-1"), 1, "denoise", 1))


def test_completion_outputs_usage_and_webhook_are_one_transaction(database: Database) -> None:
    node, clients = tables(database)
    clients.insert(new("job-1", webhook_url="https://hooks.example/x"), 0)
    taken(node, "job-1")
    assert complete(node, "job-1", at_ns=S)
    assert not complete(node, "job-1", at_ns=S)
    found = clients.find("job-1", "acme")
    assert found is not None
    assert [made.output.kind for made in found.outputs] == ["thumbnail", "video"]
    assert found.view().read == READ
    assert (found.status, found.view().progress, found.view().gpu_seconds) == ("completed", 100, 3.0)
    usage = UsageTable(database).rows(UsageQuery(TenantId("acme"), "1970-01-01", "1970-01-01"))
    assert [(row.gpu_seconds, row.frames, row.requests) for row in usage] == [(3.0, 48, 1)]
    assert len(Outbox(database).due(10, 2 * S)) == 1


# SPEC H6
def test_usage_adds_up_by_day_and_tenant(database: Database) -> None:
    meters = UsageTable(database)
    made = {"device_ns": S, "images": 2, "frames": 0, "requests": 1}
    for day, tenant in (("1970-01-01", "a"), ("1970-01-01", "a"), ("1970-01-02", "a"), ("1970-01-01", "b")):
        meters.add_all({(day, tenant, "m"): made})
    assert [(row.day, row.tenant, row.images) for row in meters.rows(days(None))] == [
        ("1970-01-01", "a", 4),
        ("1970-01-01", "b", 2),
        ("1970-01-02", "a", 2),
    ]
    assert len(meters.rows(days(TenantId("b")))) == 1
    assert [(row.day, row.images) for row in meters.sums(days(None, limit=1))] == [("1970-01-01", 6), ("1970-01-02", 2)]


# SPEC H6
@pytest.mark.parametrize("then", ["nothing", "retried", "deleted"])
def test_what_a_cancelled_attempt_took_is_metered_once_whatever_becomes_of_the_job(
    database: Database, then: str
) -> None:
    """Its checkpoint took two seconds, all of it three; the row is another life's when who ran it tells."""
    node, clients = tables(database)
    meters, job = UsageTable(database), RequestId("job-1")
    clients.insert(new("job-1"), 0)
    row = taken(node, "job-1")
    node.checkpoint(SaveCheckpoint(job, 1, 15 * S, 5, "key", 2 * S))
    clients.cancel("job-1", "acme", S)
    if then == "retried":
        Places(database).retry("job-1", "acme", 2 * S)
    elif then == "deleted":
        clients.delete("job-1", "acme")
    spent = Spent(row, ModelId("wan"), 3 * S, 2 * S)
    meters.spent(spent, 3 * S)
    if then == "nothing":
        meters.spent(spent, 3 * S)  # asked again, after an answer that was lost
    assert [(one.gpu_seconds, one.frames, one.requests) for one in meters.rows(days(None))] == [(3.0, 0, 0)]
    if then == "retried":
        again = taken(node, "job-1", 3 * S, attempt=1)
        assert again.device_ns == 0
        assert complete(node, "job-1", 2)
        assert [one.gpu_seconds for one in meters.rows(days(None))] == [6.0]


def test_an_attempt_that_another_gateway_goes_on_with_is_not_metered_by_its_loss(database: Database) -> None:
    one, clients = tables(database, "gw-1")
    other, _ = tables(database, "gw-2")
    meters = UsageTable(database)
    clients.insert(new("job-1"), 0)
    row = taken(one, "job-1")
    taken(other, "job-1", 16 * S, attempt=1)
    meters.spent(Spent(row, ModelId("wan"), 3 * S, 0), 17 * S)
    assert meters.rows(days(None)) == []


# SPEC H6
def test_pages_of_usage_have_no_gap_and_no_double(database: Database) -> None:
    meters = UsageTable(database)
    counts = {"device_ns": S, "images": 0, "frames": 0, "requests": 1, "output_tokens": 7}
    meters.add_all({("1970-01-01", tenant, model): counts for tenant in ("a", "b") for model in ("m", "n")})
    meters.add_all({("1970-01-02", "a", "m"): counts})
    seen: list[tuple[str, str, str]] = []
    while True:
        page = meters.rows(days(None, limit=2, after=seen[-1] if seen else None))
        seen += [(row.day, row.tenant, row.model) for row in page]
        if len(page) < 2:
            break
    assert seen == [
        ("1970-01-01", "a", "m"),
        ("1970-01-01", "a", "n"),
        ("1970-01-01", "b", "m"),
        ("1970-01-01", "b", "n"),
        ("1970-01-02", "a", "m"),
    ]
    assert [row.output_tokens for row in meters.sums(days(TenantId("a"), model="m"))] == [7, 7]


def days(tenant: TenantId | None, **changes: object) -> UsageQuery:
    return msgspec.structs.replace(UsageQuery(tenant, "1970-01-01", "1970-01-02"), **changes)


def test_status_is_queued_until_the_first_step(database: Database) -> None:
    """vllm-omni#6403: in_progress while it still waits."""
    node, clients = tables(database)
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    seen = []
    for state, done in (("text_encode", 0), ("denoise", 1)):
        keep(node, KeepRow(RequestId("job-1"), 1, "denoise" if state == "denoise" else "text_encode", done))
        found = clients.find("job-1", None)
        assert found is not None
        seen.append((found.status, found.view().progress))
    assert seen == [("queued", 0), ("in_progress", 10)]


def test_progress_does_not_fall_when_an_attempt_goes_on_from_a_checkpoint(database: Database) -> None:  # 3DAIGC-API#4
    node, clients = tables(database)
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    seen = []
    for done in (7, 5, 6, 8):  # a checkpoint at step 5 is what was left of the first seven
        keep(node, KeepRow(RequestId("job-1"), 1, "denoise", done))
        found = clients.find("job-1", None)
        assert found is not None
        view = found.view()
        seen.append((view.done, view.steps))
    assert seen == [(7, 10), (7, 10), (7, 10), (8, 10)]


def test_one_tenant_does_not_see_or_change_anothers_jobs(database: Database) -> None:
    _, clients = tables(database)
    places = Places(database)
    clients.insert(new("job-1"), 0)
    assert clients.find("job-1", "other") is None
    assert clients.cancel("job-1", "other", 0) is None
    assert places.pause("job-1", "other", 0) is None
    assert clients.delete("job-1", "other") is None
    assert clients.page(JobQuery(TenantId("other"), "video"))[0] == []
    assert clients.find("job-1", None) is not None


def test_pages_follow_each_other_without_gap_or_double(database: Database) -> None:
    """Also where several were stored in the same nanosecond."""
    _, clients = tables(database)
    for number in range(7):
        clients.insert(new(f"job-{number}"), number // 3)
    for order, expected in (("asc", sorted), ("desc", lambda ids: sorted(ids, reverse=True))):
        seen: list[str] = []
        after, more = None, True
        while more:
            query = JobQuery(TenantId("acme"), "video", after, 2, "asc" if order == "asc" else "desc")
            page, more = clients.page(query)
            seen += [record.id for record in page]
            after = seen[-1]
        assert seen == expected([f"job-{n}" for n in range(7)])
    with pytest.raises(RequestError, match=r"`after` is .job-9.: there is no such job") as caught:
        clients.page(JobQuery(TenantId("acme"), "video", "job-9"))
    assert caught.value.status == 404


# SPEC F7
def test_same_key_and_body_is_the_same_job_and_another_body_a_conflict(database: Database) -> None:
    """SPEC F7."""
    _, clients = tables(database)
    key = IdempotencyKey("k", b"body")
    first, row = clients.insert(new("job-1", key=key), 0)
    again, none = clients.insert(new("job-2", key=key), S)
    assert (first.id, again.id, row is None, none) == ("job-1", "job-1", False, None)
    with pytest.raises(RequestError) as caught:
        clients.insert(new("job-3", key=IdempotencyKey("k", b"other")), S)
    assert (caught.value.status, caught.value.code) == (409, "idempotency_conflict")
    other, _ = clients.insert(new("job-4", key=key, tenant="else"), S)
    assert other.id == "job-4"
    late, _ = clients.insert(new("job-5", key=key), 21 * S)
    assert late.id == "job-5"


def test_two_gateways_that_store_a_job_under_one_key_at_once_make_one(server: str) -> None:
    """The second one waits for the first one's commit, and finds its job."""
    databases = [Database(server) for _ in range(2)]
    with databases[0].engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {', '.join(metadata.tables)} CASCADE"))
    made: list[str] = []

    def store(database: Database, number: int) -> None:
        key = IdempotencyKey(f"k-{number // 2}", b"body")
        record, _ = ClientTable(database, RETENTION, 100).insert(new(f"job-{number}", key=key), number)
        made.append(record.id)

    def both(number: int) -> None:
        threads = [
            threading.Thread(target=store, args=(database, number + place)) for place, database in enumerate(databases)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for round_ in range(20):
        both(2 * round_)
    assert len(made) == 40
    assert len(set(made)) == 20
    page, _ = ClientTable(databases[0], RETENTION, 100).page(JobQuery(None, "video", limit=100))
    assert {record.id for record in page} == set(made)
    for database in databases:
        database.close()


def test_answers_by_key(database: Database) -> None:
    one, other = AnswerTable(database, "gw-1"), AnswerTable(database, "gw-2")
    key = IdempotencyKey("k", b"body")
    assert one.begin("t", key, 0, 60 * S) == Held()
    assert other.begin("t", key, 0, 60 * S) == InUse("gw-1")
    one.abandon("t", key)
    assert other.begin("t", key, 0, 60 * S) == Held()
    other.finish("t", key, b"answer", 100 * S)
    assert one.begin("t", key, S, 60 * S) == Held(b"answer")
    with pytest.raises(RequestError):
        one.begin("t", IdempotencyKey("k", b"other"), S, 60 * S)
    assert one.begin("t", key, 101 * S, 160 * S) == Held()


def test_cancelling_ends_an_open_job_and_leaves_one_that_is_over(database: Database) -> None:
    node, clients = tables(database)
    clients.insert(new("job-1", webhook_url="https://hooks.example/x"), 0)
    clients.insert(new("job-2"), 1)
    taken(node, "job-1", S)
    gone = clients.cancel("job-1", "acme", S)
    assert gone is not None
    assert (gone.record.status, gone.record.error and gone.record.error.code, gone.attempt) == (
        "failed",
        "cancelled",
        1,
    )
    assert not keep(node, KeepRow(RequestId("job-1"), 1, "denoise", 5))
    again = clients.cancel("job-1", "acme", 2 * S)
    assert again is not None
    assert (again.attempt, again.record.ended_ns) == (None, S)
    assert len(Outbox(database).due(10, 2 * S)) == 1
    assert [row.job for row in node.claimable(10, S)[0]] == ["job-2"]


def test_a_failed_job_is_retried_from_the_start_with_the_same_request(database: Database) -> None:
    """InvokeAI#7330."""
    node, clients = tables(database)
    places = Places(database)
    clients.insert(new("job-1"), 0)
    with pytest.raises(RequestError, match="only a failed one is retried"):
        places.retry("job-1", None, S)
    taken(node, "job-1")
    node.checkpoint(SaveCheckpoint(RequestId("job-1"), 1, 15 * S, 5, "key", S))
    node.fail(FailRow(RequestId("job-1"), 1, "lost", "lost", "it broke"), S)
    back = places.retry("job-1", None, 2 * S)
    assert back is not None
    assert back.row is not None
    assert (back.record.state, back.record.error, back.row.begun, back.row.failures) == ("queued", None, 0, 0)
    assert node.input(RequestId("job-1")) == JobInput(b"request")


def test_reordering_puts_a_job_right_before_another(database: Database) -> None:
    node, clients = tables(database)
    places = Places(database)
    for number in range(4):
        clients.insert(new(f"job-{number}"), number * S)
    places.reorder("job-3", "acme", "job-1")
    assert [row.job for row in node.claimable(10, 9 * S)[0]] == ["job-0", "job-3", "job-1", "job-2"]
    taken(node, "job-0", 9 * S)
    with pytest.raises(RequestError, match="not in the line"):
        places.reorder("job-3", "acme", "job-0")
    with pytest.raises(RequestError, match="before itself") as caught:
        places.reorder("job-3", "acme", "job-3")
    assert caught.value.status == 400


def test_jobs_that_nobody_began_expire(database: Database) -> None:
    node, clients = tables(database)
    for number in range(3):
        clients.insert(new(f"job-{number}"), number * S)
    taken(node, "job-0", 3 * S)
    assert Lapsed(database, RETENTION, "gw-0").expire(2 * S, 4 * S) == ["job-1"]
    found = clients.find("job-1", None)
    assert found is not None
    assert (found.status, found.error and found.error.code) == ("failed", "expired")


# SPEC H4
def test_what_is_over_is_found_once_its_time_has_passed(database: Database) -> None:
    node, clients = tables(database)
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    complete(node, "job-1", at_ns=S)
    assert clients.expired(10 * S, 10) == []
    assert clients.expired(11 * S, 10) == [("acme", "job-1")]
    clients.delete("job-1", None)
    assert clients.expired(11 * S, 10) == []
    with database.engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM job_outputs")).scalar() == 0


def test_a_look_at_jobs_and_queue_costs_the_same_few_reads_however_many_there_are(database: Database) -> None:
    """ComfyUI#1971, PR#8176: history and queue were copied whole under a lock. What clients sent is not read at all."""
    _, clients = tables(database)
    queue = Queue(database)
    said: list[str] = []
    listen(database.engine, "before_cursor_execute", lambda *call: said.append(call[2]))

    def reads() -> int:
        said.clear()
        page, has_more = clients.page(JobQuery(None, "video", None, 2, "asc"))
        assert (len(page), has_more) == (2, True)
        queue.view()
        clients.states()
        return len(said)

    counts = []
    for first, beyond in ((0, 3), (3, 30), (30, 90)):
        for number in range(first, beyond):
            clients.insert(new(f"job-{number}"), number)
        counts.append(reads())
        assert not [words for words in said if "job_inputs" in words]
    assert len(set(counts)) == 1


def test_too_many_jobs_are_refused(database: Database) -> None:
    clients = ClientTable(database, RETENTION, 2)
    clients.insert(new("job-1"), 0)
    clients.insert(new("job-2"), 0)
    with pytest.raises(CapacityError, match=r"jobs\.queued_max"):
        clients.insert(new("job-3"), 0)


def test_estimates_of_what_comes_before_add_up(database: Database) -> None:
    node, clients = tables(database)
    for number in range(3):
        clients.insert(new(f"job-{number}"), number)
    taken(node, "job-0", S)
    keep(node, KeepRow(RequestId("job-0"), 1, "denoise", 5))
    last = clients.find("job-2", None)
    assert last is not None
    assert clients.ahead_ns(last) == 15 * S


def test_of_jobs_that_are_claimed_a_later_one_waits_for_the_earlier_ones_alone(database: Database) -> None:
    # SPEC H1: what runs, then what is claimed, then the line; it was the same sum for every claimed job
    node, clients = tables(database)
    for number in range(4):
        clients.insert(new(f"job-{number}"), number)
    for number in (0, 1, 2):
        taken(node, f"job-{number}", S)
    found = [clients.find(f"job-{number}", None) for number in range(4)]
    assert [one and clients.ahead_ns(one) for one in found] == [0, 10 * S, 20 * S, 30 * S]
    keep(node, KeepRow(RequestId("job-1"), 1, "denoise", 5))  # its replica has another order: it runs first
    found = [clients.find(f"job-{number}", None) for number in range(4)]
    assert [one and clients.ahead_ns(one) for one in found] == [5 * S, 0, 15 * S, 25 * S]


def test_work_ahead_counts_the_steps_that_run_of_a_job_that_gets_fewer_than_it_asked_for(database: Database) -> None:
    node, clients = tables(database)
    for number in range(3):
        clients.insert(new(f"job-{number}"), number)
    taken(node, "job-0", S)
    assert node.degrade(RequestId("job-0"), 1, b'{"steps": 6, "model": "wan-small"}')
    keep(node, KeepRow(RequestId("job-0"), 1, "denoise", 4))
    last = clients.find("job-2", None)
    assert last is not None
    assert clients.ahead_ns(last) == 2 * S + 10 * S


def test_a_webhook_is_claimed_once_and_closed(database: Database) -> None:
    node, clients = tables(database)
    outbox = Outbox(database)
    clients.insert(new("job-1", webhook_url="https://hooks.example/x"), 0)
    taken(node, "job-1")
    complete(node, "job-1", at_ns=S)
    (row,) = outbox.due(10, S)
    assert outbox.claim(row.hook, 0, 20 * S, S) is not None
    assert outbox.claim(row.hook, 0, 20 * S, S) is None
    assert outbox.due(10, 2 * S) == ()
    outbox.postpone(row.hook, 1, 9 * S, "503")
    assert [later.attempt for later in outbox.due(10, 9 * S)] == [1]
    message = outbox.message(row.hook)
    assert message is not None
    assert msgspec.json.decode(message.body) == {
        "id": row.hook,
        "object": "event",
        "type": "video.completed",
        "created_at": 1,
        "data": {"id": "job-1"},
    }
    assert outbox.claim(row.hook, 1, 40 * S, 9 * S) is not None
    outbox.close(row.hook, 2, True, "204")
    assert outbox.due(10, 99 * S) == ()


def test_a_previews_row_belongs_to_the_attempt_that_runs(database: Database) -> None:
    node, clients = tables(database)
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    preview = [StoredOutput("preview", 0, "image/webp", 5, "key")]
    assert not node.add_outputs(RequestId("job-1"), 0, preview)
    assert node.add_outputs(RequestId("job-1"), 1, preview)
    assert node.add_outputs(RequestId("job-1"), 1, preview)
    found = clients.find("job-1", None)
    assert found is not None
    assert len(found.outputs) == 1


def test_migrations_make_the_tables_that_queries_see(database: Database) -> None:
    """And do so twice without harm: every start runs them."""
    upgrade(database.engine)
    with database.engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_the_evidence_of_attempts_is_kept_as_long_as_their_job_and_the_latest_only(database: Database) -> None:
    # SPEC I1
    table, (node, clients) = EvidenceTable(database), tables(database)
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    for attempt in range(1, ATTEMPTS_MAX + 3):
        table.keep(RequestId("job-1"), attempt, ended("job-1", attempt))
    table.keep(RequestId("job-2"), 1, ended("job-2", 1))  # there is none
    kept = table.of("job-1", None)
    assert [attempt for attempt, _ in kept] == list(range(3, ATTEMPTS_MAX + 3))
    assert [record for _, record in kept] == [ended("job-1", attempt) for attempt, _ in kept]
    assert table.of("job-1", "somebody else") == []
    assert table.of("job-2", None) == []
    clients.delete("job-1", None)
    assert table.of("job-1", None) == []


def ended(job: str, attempt: int) -> EvidenceRecord:
    at_ns = attempt * S
    marks = FrontMarks(RequestId(job), TenantId("t"), at_ns, at_ns, at_ns, at_ns, None, None, at_ns + S, 0)
    decision = Decision("pool", at_ns, "route", "rep-0", "alone", (), RequestId(job))
    return evidence_record(msgspec.structs.replace(marks, decisions=(decision,)), None)


def test_a_schema_is_taken_back_and_brought_up_again_with_its_jobs(database: Database) -> None:
    _, clients = tables(database)
    clients.insert(new("job-1"), 0)
    EvidenceTable(database).keep(RequestId("job-1"), 1, ended("job-1", 1))
    downgrade(database.engine, "0007")
    with database.engine.begin() as connection:
        assert "job_evidence" not in inspect(connection).get_table_names()
    upgrade(database.engine)
    assert clients.find("job-1", None) is not None
    assert EvidenceTable(database).of("job-1", None) == []


def test_a_table_of_an_earlier_version_is_brought_up_to_date_with_its_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    engine = create_engine(url)
    upgrade(engine, "0001")
    columns = metadata.tables["jobs"].columns  # later versions bring columns that may be null or have a default
    values = {column.name: 0 for column in columns if not (column.nullable or column.server_default)}
    values |= {"id": "job-1", "kind": "video", "tenant": "t", "model": "m", "state": "queued", "steps": 10, "echo": b""}
    named = ", ".join(f":{name}" for name in values)
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO jobs ({', '.join(values)}) VALUES ({named})"), values)
    engine.dispose()
    database = Database(url)
    found = ClientTable(database, RETENTION, 9).find("job-1", None)
    assert found is not None
    assert (found.state, found.degraded) == ("queued", None)
    database.close()


def test_a_table_of_a_later_version_is_refused_in_words(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    database = Database(url)
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(ConfigError, match="another version of Headway"):
        Database(url)


def damage(path: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    with contextlib.closing(sqlite3.connect(path)) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = opened.execute("PRAGMA page_size").fetchone()
        (page,) = opened.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\x55" * size)


def test_a_damaged_table_is_one_that_does_not_answer(tmp_path: Path) -> None:
    # SPEC H3: jobs wait for it; as a fault of their own they would be given up one after another
    path = tmp_path / "jobs.db"
    Database(f"sqlite:///{path}").close()
    damage(path, "job_inputs")
    database = Database(f"sqlite:///{path}")
    with pytest.raises(CapacityError, match="does not answer") as refused:
        ClientTable(database, RETENTION, 9).insert(new("job-1"), 0)
    assert (refused.value.status, refused.value.code) == (503, "no_job_table")
    database.close()


def test_sqlite_is_for_one_gateway_and_what_it_had_claimed_is_free_at_its_next_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'folder' / 'jobs.db'}"
    first = Database(url)
    node, clients = tables(first, "gw-1")
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    with pytest.raises(ConfigError, match="in use by another gateway") as refused:
        Database(url)
    assert f"--set jobs.url=sqlite:///{tmp_path / 'folder'}-2/jobs.db" in str(refused.value)  # what was configured
    assert f"HEADWAY_STATE={tmp_path / 'folder'}-2" in str(refused.value)
    first.close()
    second = Database(url)
    node, _ = tables(second, "gw-2")
    freed = Lapsed(second, RETENTION, "gw-2").release_all()
    assert (freed, [row.job for row in node.claimable(9, 0)[0]]) == (1, ["job-1"])
    second.close()


@pytest.mark.parametrize("url", ["mysql://h/x", "no url", "sqlite:////proc/none/jobs.db"])
def test_a_database_that_cannot_be_opened_is_refused_with_its_key(url: str) -> None:
    with pytest.raises(ConfigError, match=r"jobs\.url"):
        Database(url)


def test_a_database_that_does_not_answer_is_a_503() -> None:
    with postgres() as url:
        database = Database(url)
        _, clients = tables(database)
        clients.insert(new("job-1"), 0)
    with pytest.raises(CapacityError, match="does not answer") as caught:
        clients.find("job-1", None)
    assert caught.value.status == 503
    database.close()


def test_a_job_that_begins_anew_says_so_and_does_not_expire(database: Database) -> None:
    node, clients = tables(database)
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    job = RequestId("job-1")
    node.degrade(job, 1, b'{"steps": 8}')
    node.checkpoint(SaveCheckpoint(job, 1, 15 * S, 6, "old", 5 * S))
    assert node.requeue(RequeueRow(job, 1, 0, True, "bad_checkpoint: other weights", forgets=True))
    assert Lapsed(database, RETENTION, "gw-0").expire(10 * S, 10 * S) == []
    row = taken(node, "job-1", attempt=1)
    assert (row.begun, row.device_ns, row.restarts) == (0, 0, 1)
    assert node.input(job) == JobInput(b"request", None, None)
    found = clients.find("job-1", None)
    assert found is not None
    view = found.view()
    assert (view.status, view.progress, view.degraded) == ("in_progress", 0, {})
    assert (view.restarts, view.restart_reason) == (1, "bad_checkpoint: other weights")


def test_a_held_queue_gives_nothing_out_and_lets_nothing_expire(database: Database) -> None:
    """ComfyUI#1032."""
    node, clients = tables(database)
    queue = Queue(database)
    clients.insert(new("job-1"), 0)
    clients.insert(new("job-2", model="flux"), 1)
    queue.hold("wan", "finish", 5 * S)
    assert [row.job for row in node.claimable(9, S)[0]] == ["job-2"]
    assert node.claim(ClaimRow(RequestId("job-1"), 0, 15 * S), 0) is None
    assert Lapsed(database, RETENTION, "gw-0").expire(1, 2 * S) == []
    assert queue.view() == QueueView((Hold("wan", "finish", 5),), (QueueLine("flux", 1, 0), QueueLine("wan", 1, 0)))
    page, _ = clients.page(JobQuery(None, "video", order="asc"))
    assert [record.view().is_held for record in page] == [True, False]
    queue.hold("*", "finish", 6 * S)
    assert node.claimable(9, S)[0] == []
    with pytest.raises(RequestError, match="all models are paused") as caught:
        queue.release("wan")
    assert caught.value.status == 409
    queue.release("*")
    assert [row.job for row in node.claimable(9, S)[0]] == ["job-1", "job-2"]


def test_what_runs_while_its_queue_is_held_ends_stops_when_saved_or_stops(database: Database) -> None:
    node, clients = tables(database)
    queue = Queue(database)
    for number, model in enumerate(("ends", "saves", "stops")):
        clients.insert(new(f"job-{number}", model=model), number)
        taken(node, f"job-{number}")
    assert queue.hold("ends", "finish", S) == []
    assert queue.hold("saves", "checkpoint", S) == []
    assert queue.hold("stops", "stop", S) == [(RequestId("job-2"), 1)]
    assert queue.hold("stops", "stop", S) == []  # once
    jobs = [RequestId(f"job-{number}") for number in range(3)]
    assert [keep(node, KeepRow(job, 1, "denoise", 3)) for job in jobs] == [True, True, False]
    assert [node.checkpoint(SaveCheckpoint(job, 1, 30 * S, 4, "key", S)) for job in jobs] == [True, False, False]
    assert complete(node, "job-0")
    assert not complete(node, "job-1")
    queue.release("*")
    rows = node.claimable(9, 0)[0]
    assert [(row.job, row.begun, row.failures, row.device_ns) for row in rows] == [
        ("job-1", 4, 0, S),
        ("job-2", 0, 0, 0),
    ]


def test_a_paused_job_stays_with_who_runs_it_until_it_is_saved(database: Database) -> None:
    node, clients = tables(database)
    other, _ = tables(database, "gw-2")
    places, job = Places(database), RequestId("job-1")
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    keep(node, KeepRow(job, 1, "denoise", 5))
    paused = places.pause("job-1", "acme", S)
    assert paused is not None
    assert (paused.record.is_claimed, paused.record.is_paused, paused.record.state) == (True, True, "denoise")
    assert node.watch(WatchRows(((job, 1), (RequestId("gone"), 3)))) == (((RequestId("gone"), 3),), ((job, 1),))
    assert other.watch(WatchRows(((job, 1),))) == (((job, 1),), ())
    assert not node.checkpoint(SaveCheckpoint(job, 1, 30 * S, 6, "key", S))  # written, and handed back with it
    assert node.claimable(9, 99 * S)[0] == []
    back = places.resume("job-1", "acme")
    assert back is not None
    assert back.row is not None
    assert (back.row.begun, back.row.failures, back.record.is_claimed) == (6, 0, False)


def test_a_process_that_ends_gives_back_its_own_rows_and_counts_no_failure(database: Database) -> None:
    node, clients = tables(database)
    other, _ = tables(database, "gw-2")
    for number in range(3):
        clients.insert(new(f"job-{number}"), number)
    taken(node, "job-0")
    taken(node, "job-1")
    taken(other, "job-2")
    assert complete(node, "job-1")
    assert node.give_back() == 1
    assert [(row.job, row.failures) for row in other.claimable(9, S)[0]] == [("job-0", 0)]
    assert not keep(node, KeepRow(RequestId("job-0"), 1, "denoise", 3))


def test_a_paused_job_whose_gateway_is_dead_waits_from_its_last_checkpoint(database: Database) -> None:
    node, clients = tables(database)
    places, job = Places(database), RequestId("job-1")
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    node.checkpoint(SaveCheckpoint(job, 1, 15 * S, 5, "key", S))
    paused = places.pause("job-1", "acme", 16 * S)
    assert paused is not None
    assert (paused.record.is_claimed, paused.record.state) == (False, "preempted")
    places.resume("job-1", "acme")
    assert [row.begun for row in node.claimable(9, 16 * S)[0]] == [5]


def test_what_ran_at_a_gateway_that_died_is_not_shown_as_running_for_ever(database: Database) -> None:
    """A paused row, or one of a held queue, is claimed by nobody, so nobody else would free it."""
    node, clients = tables(database)
    clients.insert(new("job-1"), 0)
    taken(node, "job-1")
    Places(database).pause("job-1", "acme", S)
    lapsed, queue = Lapsed(database, RETENTION, "gw-0"), Queue(database)
    lapsed.expire(0, 15 * S)
    assert queue.view().lines == (QueueLine("wan", 0, 1),)
    lapsed.expire(0, 16 * S)
    assert queue.view().lines == (QueueLine("wan", 1, 0),)


def test_a_key_whose_job_is_deleted_makes_no_other(database: Database) -> None:
    _, clients = tables(database)
    key = IdempotencyKey("k", b"body")
    clients.insert(new("job-1", key=key), 0)
    clients.delete("job-1", None)
    with pytest.raises(RequestError, match="which is deleted; use a new key") as caught:
        clients.insert(new("job-2", key=key), S)
    assert (caught.value.status, caught.value.code) == (409, "idempotency_conflict")


def test_words_that_a_database_does_not_take_do_not_keep_a_job_open(database: Database) -> None:
    """PostgreSQL has no NUL in texts: an end that cannot be written would be tried for ever."""
    node, clients = tables(database)
    for number in range(2):
        clients.insert(new(f"job-{number}"), number)
        taken(node, f"job-{number}")
    assert node.fail(FailRow(RequestId("job-0"), 1, "failed", "bad_input", "a\0b"), 0)
    assert node.requeue(RequeueRow(RequestId("job-1"), 1, 0, True, "c\0d", forgets=True))
    found = [clients.find(f"job-{number}", None) for number in range(2)]
    assert [record and (record.error and record.error.message, record.restart_reason) for record in found] == [
        ("a\N{REPLACEMENT CHARACTER}b", None),
        (None, "c\N{REPLACEMENT CHARACTER}d"),
    ]


def test_a_value_that_the_database_refuses_is_its_senders_fault(database: Database) -> None:
    if database.is_sqlite:
        assert UsageTable(database).rows(days(TenantId("a\0b"))) == []
        return
    with pytest.raises(RequestError, match="cannot hold a value") as caught:
        UsageTable(database).rows(days(TenantId("a\0b")))
    assert caught.value.status == 400


def test_a_degraded_job_is_as_far_as_what_runs(database: Database) -> None:  # SPEC F5
    node, clients = tables(database)
    clients.insert(msgspec.structs.replace(new("job-1"), steps=20, estimate_ns=20 * S), 0)
    taken(node, "job-1")
    node.degrade(RequestId("job-1"), 1, b'{"model": "fast", "steps": 8}')
    node.checkpoint(SaveCheckpoint(RequestId("job-1"), 1, 15 * S, 6, "some", 5 * S))
    found = clients.find("job-1", None)
    assert found is not None
    assert (found.view().progress, found.left_ns) == (75, 2 * S)


def test_jobs_of_a_model_that_starts_are_left_in_the_line(database: Database) -> None:  # SPEC M2
    node, clients = tables(database)
    clients.insert(new("job-1", model="late"), 0)
    clients.insert(new("job-2"), 1)
    assert [row.job for row in node.claimable(9, S, ["late"])[0]] == ["job-2"]
    assert [row.job for row in node.claimable(9, S)[0]] == ["job-1", "job-2"]
