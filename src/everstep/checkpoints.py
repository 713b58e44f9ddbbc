"""Nested states on disk: written atomically, and read without running code.

A state is made of dicts, lists, tuples, tensors, ints, floats, bools, strings and None. It becomes
a JSON document, with a checksum over itself, and an `.npz` archive of the tensors, with a checksum
for each. `save_state` puts the two side by side in a directory, `save_file` puts the document into
the archive. Any NumPy can read the archive; a dtype that NumPy lacks, such as bfloat16, is stored
as the integers with the same bits.
"""

import contextlib
import glob
import hashlib
import io
import json
import math
import os
import platform
import re
import secrets
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch

from ._version import __version__
from .data import Device
from .errors import CheckpointError

_FORMAT = "everstep state"
_VERSION = 1
_DOCUMENT = "state.json"
_ARCHIVE = re.compile(r"tensors-[0-9a-f]{16}\.npz")
#: Integers with the same bits, by size in bytes, for dtypes that NumPy lacks.
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Dtypes by name: PyTorch imports modules when some other names are looked up.
_DTYPES = {str(x).removeprefix("torch."): x for x in vars(torch).values() if type(x) is torch.dtype}
#: Key that marks values which JSON cannot represent; a dict that has it is marked itself.
_TAG = "$"


def save_state(directory: str | Path, state: Any) -> None:
    """Write a state into a directory, replacing an earlier one.

    If writing is interrupted, the directory contains the complete old state or the complete new
    one: the archive gets a new name, and the document that names it is replaced last. Other files
    in the directory are not changed. There must be only one writer at a time.

    Args:
        directory: Created if missing. It is a checkpoint once it contains `state.json`.
        state: The state; tensors may be on any device.

    Raises:
        CheckpointError: Names the part of the state that is of another type.
        OSError: If the disk is full or not writable; the old state is then unchanged.

    """
    directory = Path(directory)
    encoder = _Encoder(state)
    token = secrets.token_hex(8)
    archive = directory / f"tensors-{token}.npz"
    document = directory / f"{_DOCUMENT}.{token}.tmp"
    directory.mkdir(parents=True, exist_ok=True)
    # An interrupt can arrive between the replacement and the end of this block.
    archives = _removed_on_error(archive, unless=lambda: _names(directory, archive))
    with _removed_on_error(document), archives:
        with _synced(archive) as file:
            _write_archive(file, encoder.arrays, None)
        with _synced(document) as file:
            file.write(encoder.document(archive.name))
        sync_directory(directory)
        document.replace(directory / _DOCUMENT)
    sync_directory(directory)
    _remove_leftovers(directory, f"{_DOCUMENT}.*.tmp", keep=archive)
    _remove_leftovers(directory, "tensors-*.npz", keep=archive)


def load_state(directory: str | Path, map_location: Device = "cpu") -> Any:
    """The state that `save_state` wrote, with its tensors on `map_location`. Runs no code.

    Raises:
        CheckpointError: Names the file and the problem: it is missing, damaged, of an unknown
            version, or not written by `save_state`.

    """
    body, file = _open_archive(Path(directory))
    with file, _reading(Path(file.name)), zipfile.ZipFile(file) as archive:
        _check_sizes(archive, os.fstat(file.fileno()).st_size)
        return _decode_body(body, archive, map_location)


def save_file(path: str | Path, state: Any) -> None:
    """Write a state as one file of any suffix, atomically replacing an old one.

    Args:
        path: The file; its directory is created if missing.
        state: The state; tensors may be on any device.

    Raises:
        CheckpointError: Names the part of the state that is of another type.
        OSError: If the disk is full or not writable; the old file is then unchanged.

    """
    path = Path(path)
    encoder = _Encoder(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with _removed_on_error(temporary):
        with _synced(temporary) as file:
            _write_archive(file, encoder.arrays, encoder.document(None))
        temporary.replace(path)
    sync_directory(path.parent)
    _remove_leftovers(path.parent, f".{glob.escape(path.name)}.*.tmp", keep=path)


def load_file(path: str | Path, map_location: Device = "cpu") -> Any:
    """The state that `save_file` wrote, with its tensors on `map_location`. Runs no code.

    Raises:
        CheckpointError: Names the file and the problem: it is missing, damaged, of an unknown
            version, or not written by `save_file`.

    """
    path = Path(path)
    with _reading(path), zipfile.ZipFile(path) as archive:
        _check_sizes(archive, path.stat().st_size)
        return _decode_body(_checked_body(archive.read(_DOCUMENT)), archive, map_location)


class _Tensor(NamedTuple):
    """The document's entry of one tensor."""

    dtype: str
    shape: list[int]
    sha256: str


class _Encoder:
    """Converts a state to JSON values, and collects its tensors."""

    def __init__(self, state: Any) -> None:
        self.arrays: list[np.ndarray[Any, Any]] = []
        self.tensors: list[_Tensor] = []
        self.encoded = self.encode(state, "state")

    def document(self, archive: None | str) -> bytes:
        """The JSON document; `archive` is the name of the tensors' file if they are in another."""
        body = {
            "libraries": {
                "everstep": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "archive": archive,
            "tensors": [tensor._asdict() for tensor in self.tensors],
            "state": self.encoded,
        }
        document = {"format": _FORMAT, "version": _VERSION, "sha256": _checksum(body), "body": body}
        return json.dumps(document, indent=1, allow_nan=False).encode()

    def encode(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):  # beyond 64 bits in hexadecimal: Python limits decimal digits
            small = abs(value) < 2**63
            return int(value) if small else {_TAG: "int", "value": hex(value)}
        if isinstance(value, float):
            value = float(value)
            return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(value, path)
        if isinstance(value, dict):
            return self._encode_dict(value, path)
        if isinstance(value, list | tuple):
            items = [self.encode(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return items if isinstance(value, list) else {_TAG: "tuple", "items": items}
        raise CheckpointError(
            f"`{path}` cannot be saved: it is a {type(value).__module__}."
            f"{type(value).__qualname__}. A state is made of dicts, lists, tuples, tensors, ints, "
            "floats, bools, strings and None."
        )

    def _encode_dict(self, value: dict[Any, Any], path: str) -> dict[str, Any]:
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise CheckpointError(
                    f"`{path}` cannot be saved: its key {key!r} is neither a string nor an int."
                )
        items = {key: self.encode(item, f"{path}[{key!r}]") for key, item in value.items()}
        if _TAG not in items and all(isinstance(key, str) for key in items):
            return items
        pairs = [[self.encode(key, path), item] for key, item in items.items()]
        return {_TAG: "dict", "items": pairs}

    def _encode_tensor(self, tensor: torch.Tensor, path: str) -> dict[str, Any]:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise CheckpointError(
                f"`{path}` cannot be saved: it is a sparse, quantized or meta tensor. "
                "Save a dense one."
            )
        dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        array = dense.view(_stored_dtype(dense.dtype)).numpy()
        name = str(tensor.dtype).removeprefix("torch.")
        checksum = _sha256(array.reshape(-1).view(np.uint8))
        self.arrays.append(array)
        self.tensors.append(_Tensor(name, list(tensor.shape), checksum))
        return {_TAG: "tensor", "index": len(self.arrays) - 1}


def _stored_dtype(dtype: torch.dtype) -> torch.dtype:
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return _SAME_SIZE[dtype.itemsize]
    return dtype


def _sha256(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _checksum(body: Any) -> str:
    """Checksum of a document's body, written without spaces."""
    return _sha256(json.dumps(body, separators=(",", ":"), allow_nan=False).encode())


def _write_archive(
    file: IO[bytes], arrays: list[np.ndarray[Any, Any]], document: None | bytes
) -> None:
    archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
    try:
        if document is not None:
            archive.writestr(zipfile.ZipInfo(_DOCUMENT), document)
        for i, array in enumerate(arrays):
            with archive.open(zipfile.ZipInfo(f"{i}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        archive.close()
    except BaseException:
        archive.fp = None  # its end is not written: that would raise another error
        raise


def _read_document(directory: Path) -> dict[str, Any]:
    with _reading(directory / _DOCUMENT):
        body = _checked_body((directory / _DOCUMENT).read_bytes())
        if not _ARCHIVE.fullmatch(body["archive"]):
            raise CheckpointError(f"`archive` must be a file beside it; got {body['archive']!r}")
        return body


def _open_archive(directory: Path) -> tuple[dict[str, Any], IO[bytes]]:
    """The document and its archive, opened; retries if a training run has just replaced both."""
    previous = None
    while True:
        body = _read_document(directory)
        path = directory / body["archive"]
        with _reading(path):
            try:
                return body, open(path, "rb")
            except FileNotFoundError:
                if body == previous:
                    raise
                previous = body


def _checked_body(content: bytes) -> dict[str, Any]:
    document = json.loads(content.decode())
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise CheckpointError(f"it is not a saved state: `format` must be {_FORMAT!r}")
    if document["version"] != _VERSION:
        raise CheckpointError(
            f"its version is {document['version']!r} and this Everstep ({__version__}) reads "
            f"version {_VERSION}. Load it with the Everstep that wrote it"
        )
    body: dict[str, Any] = document["body"]
    if _checksum(body) != document["sha256"]:
        raise CheckpointError("it was changed or damaged: its checksum does not match")
    return body


def _decode_body(body: dict[str, Any], archive: zipfile.ZipFile, map_location: Device) -> Any:
    tensors = [
        _read_tensor(archive, f"{i}.npy", _Tensor(**entry)).to(map_location)
        for i, entry in enumerate(body["tensors"])
    ]
    return _decode(body["state"], tensors)


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse an archive that would grow when read: no compressed or overlapping members."""
    members = archive.infolist()
    if any(x.compress_type or x.compress_size != x.file_size for x in members):  # 0 is stored
        raise CheckpointError("it contains compressed members, which a saved state never does")
    if sum(member.file_size for member in members) > size:
        raise CheckpointError(f"its members claim to be larger than the file ({size} bytes)")


def _read_tensor(archive: zipfile.ZipFile, name: str, declared: _Tensor) -> torch.Tensor:
    dtype = _DTYPES.get(declared.dtype)
    if dtype is None:
        raise CheckpointError(f"{name} has an unknown dtype, {declared.dtype!r}")
    expected = torch.empty(0, dtype=_stored_dtype(dtype)).numpy().dtype
    try:
        content = archive.read(name)
    except KeyError:
        raise CheckpointError(f"{name} is missing") from None
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):  # later ones are for headers of more than 64 KiB
        raise CheckpointError(f"unknown version {version} of the .npy format")
    shape, fortran_order, found = np.lib.format.read_array_header_1_0(stream)
    data = bytearray(memoryview(content)[stream.tell() :])  # writable, as tensors are
    if (list(shape), fortran_order, found) != (declared.shape, False, expected):
        raise CheckpointError(
            f"{name} must be {expected} of shape {declared.shape}; got {found} of {list(shape)}"
        )
    if len(data) != math.prod(shape) * expected.itemsize:
        raise CheckpointError(
            f"{name} must hold {math.prod(shape)} elements; got {len(data)} bytes"
        )
    if _sha256(data) != declared.sha256:
        raise CheckpointError(f"{name} was changed or damaged: its checksum does not match")
    return torch.from_numpy(np.ndarray(shape, expected, data)).view(dtype)


def _decode(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_TAG)
    if kind is None:
        return {key: _decode(item, tensors) for key, item in value.items()}
    if kind == "tensor":
        return tensors[value["index"]]
    if kind == "tuple":
        return tuple(_decode(item, tensors) for item in value["items"])
    if kind == "dict":
        return {_decode(key, tensors): _decode(item, tensors) for key, item in value["items"]}
    if kind == "float":
        return float(value["value"])
    if kind == "int":
        return int(value["value"], 16)
    raise CheckpointError(
        f"it contains a {kind!r}, which this Everstep ({__version__}) does not know"
    )


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file in every error: reading an untrusted file can fail in any way."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}.") from error.__cause__
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: no such file, so this is not a complete saved state."
        ) from error
    except IsADirectoryError as error:
        inside = f"load {path / 'policy'}" if (path / "policy").is_file() else "name a file in it"
        raise CheckpointError(f"{path}: is a directory: {inside}.") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}.") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError(f"{path}: it is damaged or not a saved state ({reason}).") from error


@contextlib.contextmanager
def _synced(path: Path) -> Iterator[IO[bytes]]:
    """A new file that is flushed to the disk when the block ends."""
    with open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _removed_on_error(path: Path, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Remove a file if the block raises; an error of writing it names it."""
    try:
        yield
    except BaseException as error:
        if not unless():
            path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path.parent)) from error
        raise


def _names(directory: Path, archive: Path) -> bool:
    """Whether the document in the directory is the one of an archive."""
    try:
        return archive.name.encode() in (directory / _DOCUMENT).read_bytes()
    except FileNotFoundError:
        return False


def sync_directory(directory: Path) -> None:
    """Flush the names of a directory to the disk."""
    if os.name == "nt":  # directories cannot be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not supported by some network file systems
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(directory: Path, pattern: str, *, keep: Path) -> None:
    """Remove files of an earlier state, or of a save that was killed."""
    for path in directory.glob(pattern):
        if path != keep:
            with contextlib.suppress(OSError):  # it may be open elsewhere; the next save retries
                path.unlink()
