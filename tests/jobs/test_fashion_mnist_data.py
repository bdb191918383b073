"""The real data set: read, downloaded, checked."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parents[2] / "jobs"


@pytest.fixture
def data() -> ModuleType:
    """The module under test, loaded from its file."""
    spec = importlib.util.spec_from_file_location("fashion_mnist_data", HERE / "fashion_mnist_data.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def site(tmp_path: Path, data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A web server over four small files whose checksums the module is told."""
    folder = tmp_path / "site"
    folder.mkdir()
    digests = {}
    for name in data.FILES:
        inside = b"\0\0\x08\x01" + (4).to_bytes(4, "big") + bytes([1, 2, 3, 4]) + name.encode()
        (folder / name).write_bytes(gzip.compress(inside))
        digests[name] = hashlib.sha256(inside).hexdigest()
    monkeypatch.setattr(data, "FILES", digests)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", folder
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_download_brings_every_file_once(
    site: tuple[str, Path], tmp_path: Path, data: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """All four files arrive, each is reported, and a second call downloads nothing."""
    target = tmp_path / "cache"

    assert data.ensure(target, (site[0],)) == target

    first = capsys.readouterr().err
    assert all(f"{name}: " in first and "(100 %)" in first for name in data.FILES)
    data.ensure(target, ("http://127.0.0.1:1/",))
    assert capsys.readouterr().err == ""
    assert sorted(p.name for p in target.iterdir()) == sorted(data.FILES)


def test_a_damaged_download_is_refused_and_the_next_source_used(
    site: tuple[str, Path], tmp_path: Path, data: ModuleType
) -> None:
    """A file with another content is never kept; a good second source mends it, none at all is one sentence."""
    name = next(iter(data.FILES))
    good = (site[1] / name).read_bytes()
    (site[1] / name).write_bytes(gzip.compress(b"something else"))
    target = tmp_path / "cache"

    with pytest.raises(OSError, match=r"could not be downloaded .*checksum.*apt-get install dataset-fashion-mnist"):
        data.ensure(target, (site[0],))

    assert list(target.iterdir()) == []
    (site[1] / "mirror").mkdir()
    for file in data.FILES:
        (site[1] / "mirror" / file).write_bytes(good if file == name else (site[1] / file).read_bytes())
    data.ensure(target, (site[0], site[0] + "mirror/"))
    assert (target / name).read_bytes() == good


def test_a_cut_download_leaves_nothing(site: tuple[str, Path], tmp_path: Path, data: ModuleType) -> None:
    """Half an archive is refused, and no part of it stays behind."""
    name = next(iter(data.FILES))
    whole = (site[1] / name).read_bytes()
    (site[1] / name).write_bytes(whole[: len(whole) // 2])

    with pytest.raises(OSError, match="could not be downloaded"):
        data.download(name, data.FILES[name], tmp_path, (site[0],))

    assert [p.name for p in tmp_path.iterdir()] == ["site"]


def test_the_packaged_files_are_the_real_data_set(data: ModuleType) -> None:
    """What the Debian package holds has the published content, shapes and ten classes of 6,000 images."""
    if not data.PACKAGED.is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    for name, digest in data.FILES.items():
        assert hashlib.sha256(gzip.decompress((data.PACKAGED / name).read_bytes())).hexdigest() == digest

    images, labels = data.load(data.PACKAGED, "train")
    assert tuple(images.shape) == (60000, 28, 28)
    assert labels.bincount().tolist() == [6000] * 10
    assert tuple(data.load(data.PACKAGED, "t10k")[0].shape) == (10000, 28, 28)


def test_a_file_that_is_no_idx_is_named(tmp_path: Path, data: ModuleType) -> None:
    """A wrong file yields one sentence with its name."""
    wrong = tmp_path / "train-images-idx3-ubyte.gz"
    wrong.write_bytes(gzip.compress(b"hello there"))

    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz is no IDX file"):
        data.read_idx(wrong)
