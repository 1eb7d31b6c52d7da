"""Objects at URLs as Arrow resolves them; a folder replaces the store."""

from types import SimpleNamespace

import pytest

from raybench.results import bucket
from raybench.results.bucket import Bucket, check_url
from raybench.spec.errors import ErrorCode
from tests.refusals import refused

fs = pytest.importorskip("pyarrow.fs")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder that replaces all stores; Arrow still parses the URLs."""
    local = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())

    def from_uri(url):
        return local, fs.FileSystem.from_uri(url)[1]

    filesystems = SimpleNamespace(
        FileSystem=SimpleNamespace(from_uri=from_uri),
        FileSelector=fs.FileSelector,
        FileType=fs.FileType,
    )
    monkeypatch.setattr(bucket, "_filesystems", lambda: filesystems)
    return tmp_path


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("abfs://container@account.dfs.core.windows.net/x/y", "container/x/y"),
        ("abfss://account.blob.core.windows.net/container/x", "container/x"),
        ("gs://bucket/a%20b", "bucket/a b"),
        ("s3://bucket/a%20b/?region=x", "bucket/a b"),
    ],
)
def test_objects_are_stored_where_arrow_resolves_the_url(store, url, where):
    check_url(url)
    (store / where / "errors").mkdir(parents=True)
    assert Bucket(url).list_keys() == []
    Bucket(url).put("study.yaml", b"a: 1")
    (store / "file").write_bytes(b"text")
    Bucket(url).put("errors/0.txt", store / "file")
    assert (store / where / "study.yaml").read_bytes() == b"a: 1"
    assert set(Bucket(url).list_keys()) == {"study.yaml", "errors/0.txt"}
    assert Bucket(url).get("study.yaml") == b"a: 1"
    Bucket(url).get_file("errors/0.txt", store / "back")
    assert (store / "back").read_bytes() == b"text"
    Bucket(url).delete("study.yaml")
    assert set(Bucket(url).list_keys()) == {"errors/0.txt"}


def test_a_container_without_a_folder_is_refused(store):
    with refused(ErrorCode.INVALID_VALUE, "/container"):
        Bucket("abfs://account.dfs.core.windows.net/container").list_keys()


@pytest.mark.parametrize(
    "url", ["s3://bucket/a%3Db", "gs://bucket/a/%2e%2e/b", "gs://bucket/a%2F/b"]
)
def test_urls_with_unsafe_keys_are_refused(url):
    with refused(ErrorCode.INVALID_VALUE, url):
        check_url(url)
