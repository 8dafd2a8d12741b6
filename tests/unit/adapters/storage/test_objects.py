"""The object store on a folder and on an S3 server (moto) alike (SPEC H4)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from headway.adapters.storage.keys import job_prefix, object_key, sealed
from headway.adapters.storage.objects import DamagedObject, ObjectStore
from headway.adapters.storage.settings import StorageSettings
from headway.core.errors import CapacityError, ConfigError, RequestError


@pytest.fixture(scope="module")
def s3() -> Iterator[StorageSettings]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=endpoint, **keys)
    client.create_bucket(Bucket="headway")
    yield StorageSettings("s3://headway/objects", endpoint, "us-east-1", allow_http=True)
    client.close()
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    settings = StorageSettings() if request.param == "folder" else request.getfixturevalue("s3")
    return ObjectStore(settings, tmp_path / "objects")


# SPEC H4
def test_gives_back_what_was_put_and_nothing_after_it_was_deleted(store: ObjectStore) -> None:
    async def use() -> None:
        await store.check()
        await store.put("t/job-1/1/video", b"one")
        await store.put("t/job-1/1/video", b"two")
        assert await store.get("t/job-1/1/video") == b"two"
        await store.delete(["t/job-1/1/video", "t/job-1/1/none"])
        assert await store.get("t/job-1/1/video") is None

    asyncio.run(use())


# SPEC H4
@pytest.mark.parametrize("found", [b"", b"bod", b"bodY", b"\0\0\0\0"])
def test_what_is_not_what_was_put_there_is_not_given_back(store: ObjectStore, found: bytes) -> None:
    """A disk that lost its power may leave a name without its bytes."""

    async def use() -> None:
        key = sealed("damaged/job-1/1/video-0", b"body")
        await store.put(key, b"body")
        assert await store.get(key) == b"body"
        await store.put(key, found)
        with pytest.raises(DamagedObject) as caught:
            await store.get(key)
        assert store.name not in str(caught.value)  # a job's client reads it as the reason of its restart

    asyncio.run(use())


# SPEC H4
def test_deletes_everything_of_one_job_and_nothing_of_another(store: ObjectStore) -> None:
    """Also not of one whose id begins with the same letters."""

    async def use() -> None:
        for key in ("t/a/1/x", "t/a/2/y", "t/ab/1/x", "u/a/1/x"):
            await store.put(key, b"")
        await store.delete_below("t/a")
        assert [*await store.list("t"), *await store.list("u")] == ["t/ab/1/x", "u/a/1/x"]

    asyncio.run(use())


def test_a_put_leaves_no_half_object_beside_it(tmp_path: Path) -> None:
    """A reader that lists the folder sees whole objects only."""
    store = ObjectStore(StorageSettings(), tmp_path)
    asyncio.run(store.put("t/job/1/x", b"body"))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["x"]


def test_a_store_that_does_not_take_an_object_is_an_error_and_no_fallback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """sglang falls back to the local disk in silence. Where it is and what it said is for the log alone."""
    store = ObjectStore(StorageSettings(), tmp_path / "objects")
    (tmp_path / "objects" / "t").write_text("a file where a folder should be")
    with pytest.raises(CapacityError, match="does not take part") as caught:
        asyncio.run(store.put("t/job/1/x", b"body"))
    assert (caught.value.status, caught.value.code) == (503, "no_object_store")
    assert str(caught.value) == "The object store does not take part; try again."
    assert f"the object store {tmp_path / 'objects'} does not answer: " in caplog.text
    assert store.outage.is_on
    assert asyncio.run(store.get("u/none")) is None
    assert not store.outage.is_on


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (StorageSettings("gs://bucket"), "storage.url"),
        (StorageSettings("s3://"), "storage.url"),
        (StorageSettings("/proc/none"), "storage.url"),
        (StorageSettings("", endpoint="http://x"), "storage.endpoint"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: StorageSettings, key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        ObjectStore(settings, tmp_path)


def test_region_and_endpoint_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert ObjectStore(StorageSettings("s3://bucket/prefix"), tmp_path).name == "s3://bucket/prefix"


def test_a_bucket_that_is_not_there_is_refused_at_the_start(
    s3: StorageSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    store = ObjectStore(StorageSettings("s3://other", s3.endpoint, "us-east-1", allow_http=True), tmp_path)
    with pytest.raises(ConfigError, match="cannot be used"):
        asyncio.run(store.check())


@pytest.mark.parametrize("job", ["../x", "a/b", "", "x" * 65, "..", "a\x00b", "ü"])
def test_ids_that_are_no_path_of_ours_are_unknown(job: str) -> None:
    # SPEC M5
    with pytest.raises(RequestError) as caught:
        job_prefix("t", job)
    assert caught.value.status == 404


def test_tenants_of_any_name_have_folders_of_their_own() -> None:
    names = ["default", "..", "../default", "a/b", "~x", "ü", "x" * 300]
    keys = [object_key(name, "job-1", 2, "picture-0") for name in names]
    assert keys[0] == "default/job-1/2/picture-0"
    assert len(set(keys)) == len(names)
    assert all(len(key.split("/")) == 4 and ".." not in key for key in keys)
