"""Nested states on disk: written atomically, and read without running code.

A state is made of dicts, lists, tuples, tensors, arrays and scalars of NumPy, numbers, strings,
bytes and None; all come back with their type, and arrays with their dtype. It becomes a JSON
document, with a checksum over itself, and an `.npz` archive of the tensors, with a checksum for
each. `save_state` puts the two side by side in a directory, `save_file` puts the document into the
archive. Any NumPy can read the archive; a dtype that NumPy lacks, such as bfloat16, is stored as
the integers with the same bits, and NumPy's own arrays as bytes.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import platform
import re
import secrets
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch

from .._version import __version__
from ..data import Device
from ..errors import CheckpointError
from .files import replacing, write_file
from .plain_files import open_plain, read_plain

_FORMAT = "everstep state"
_VERSION = 1
_DOCUMENT = "state.json"
_ARCHIVE = re.compile(r"tensors-[0-9a-f]{16}\.npz")
#: Bytes of a document: Python's objects of it take some ten times as much.
_MAX_DOCUMENT = 64_000_000
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
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(archive) as place, open(place, "xb") as file:
            _write_archive(file, encoder.arrays, None)
        write_file(directory / _DOCUMENT, encoder.document(archive.name))
    except BaseException:
        if not _names(directory, archive):  # an interrupt can arrive after the replacement
            archive.unlink(missing_ok=True)
        raise
    for old in directory.glob("tensors-*.npz"):
        if old != archive:
            with contextlib.suppress(OSError):  # it may be open elsewhere; the next save retries
                old.unlink()


def load_state(
    directory: str | Path, map_location: Device = "cpu", *, within: None | str | Path = None
) -> Any:
    """The state that `save_state` wrote, with its tensors on `map_location`. Runs no code.

    Args:
        directory: Directory of the state.
        map_location: Device of its tensors.
        within: Directory that its files must be in, links followed; None: `directory`.

    Raises:
        CheckpointError: Names the file and the problem: it is missing, damaged, of an unknown
            version, or not written by `save_state`.

    """
    body, file = _open_archive(Path(directory), directory if within is None else within)
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
    with replacing(path) as place, open(place, "wb") as file:
        _write_archive(file, encoder.arrays, encoder.document(None))


def load_file(
    path: str | Path, map_location: Device = "cpu", *, within: None | str | Path = None
) -> Any:
    """The state that `save_file` wrote, with its tensors on `map_location`. Runs no code.

    Args:
        path: The file.
        map_location: Device of its tensors.
        within: Directory that it must be in, links followed; None: anywhere.

    Raises:
        CheckpointError: Names the file and the problem: it is missing, damaged, of an unknown
            version, or not written by `save_file`.

    """
    path = Path(path)
    with _reading(path), open_plain(path, within=within) as file, zipfile.ZipFile(file) as archive:
        _check_sizes(archive, os.fstat(file.fileno()).st_size)
        if (size := archive.getinfo(_DOCUMENT).file_size) > _MAX_DOCUMENT:
            raise CheckpointError(f"its document has {size:,} bytes; at most {_MAX_DOCUMENT:,}")
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
        try:
            self.encoded = self.encode(state, "state")
        except RecursionError:
            message = "`state` cannot be saved: it contains itself, or is nested too deeply."
            raise CheckpointError(message) from None

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
        if isinstance(value, np.ndarray | np.generic):  # first: some are floats or strings, too
            return self._encode_array(value, path)
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):  # beyond 64 bits in hexadecimal: Python limits decimal digits
            small = abs(value) < 2**63
            return int(value) if small else {_TAG: "int", "value": hex(value)}
        if isinstance(value, float):
            value = float(value)
            return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
        if isinstance(value, complex):
            return {_TAG: "complex", "value": [repr(value.real), repr(value.imag)]}
        if isinstance(value, bytes | bytearray):
            kind = "bytes" if isinstance(value, bytes) else "bytearray"
            return {_TAG: kind, "index": self._store_bytes(value)}
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(value, path)
        if isinstance(value, dict):
            return self._encode_dict(value, path)
        if isinstance(value, list | tuple):
            items = [self.encode(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return items if isinstance(value, list) else {_TAG: "tuple", "items": items}
        raise CheckpointError(
            f"`{path}` cannot be saved: it is a {_type_name(value)}. A state is made of dicts, "
            "lists, tuples, tensors, NumPy arrays, numbers, strings, bytes and None. Put what the "
            "object is made of into the state, such as `rng.bit_generator.state` of a generator of "
            "NumPy, and make the object from it again when the state is loaded."
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
        return {_TAG: "tensor", "index": self._store(tensor)}

    def _encode_array(self, value: Any, path: str) -> dict[str, Any]:
        """An array's bytes, and how to read them: NumPy has dtypes that PyTorch lacks."""
        descr = _descr_of(value.dtype)
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            problem = f"it is a {_type_name(value)}. Save `numpy.asarray` of it."
        elif descr is None:
            problem = f"its dtype is {value.dtype}. Save an array of numbers, or a list."
        else:
            index = self._store_bytes(np.asarray(value).tobytes())
            entry = {_TAG: "array", "index": index, "dtype": descr, "shape": list(value.shape)}
            return entry | {"scalar": isinstance(value, np.generic)}
        raise CheckpointError(f"`{path}` cannot be saved: {problem}")

    def _store_bytes(self, content: bytes | bytearray) -> int:
        data = bytearray(content)  # tensors are writable
        return self._store(torch.from_numpy(np.ndarray(len(data), np.uint8, data)))

    def _store(self, tensor: torch.Tensor) -> int:
        """Add a tensor; its index."""
        dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        array = dense.view(_stored_dtype(dense.dtype)).numpy()
        name = str(tensor.dtype).removeprefix("torch.")
        checksum = _sha256(array.reshape(-1).view(np.uint8))
        self.arrays.append(array)
        self.tensors.append(_Tensor(name, list(tensor.shape), checksum))
        return len(self.arrays) - 1


class _Checker(_Encoder):
    """Walks a state as an encoder does, without its tensors' content."""

    def _store(self, tensor: torch.Tensor) -> int:
        return 0


def check_state(state: Any) -> None:
    """Check that a state can be saved; reads no tensor's content.

    Raises:
        CheckpointError: Names the part of the state that is of another type.

    """
    _Checker(state)


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _descr_of(dtype: np.dtype[Any]) -> Any:
    """A dtype as JSON; None if it has objects, or is of another library than NumPy."""
    if dtype.hasobject:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another library's: it would be stored as bare bytes
        descr = json.loads(json.dumps(np.lib.format.dtype_to_descr(dtype)))
        return descr if _dtype_of(descr) == dtype else None


def _dtype_of(descr: Any) -> np.dtype[Any]:
    """The dtype of `_descr_of`.

    Raises:
        CheckpointError: If it has objects.

    """

    def field(name: Any, descr: Any, *shape: Any) -> tuple[Any, ...]:
        named = tuple(name) if isinstance(name, list) else name  # with a title
        return (named, fields(descr), *map(tuple, shape))

    def fields(descr: Any) -> Any:
        return [field(*each) for each in descr] if isinstance(descr, list) else descr

    dtype = np.lib.format.descr_to_dtype(fields(descr))
    if dtype.hasobject:
        raise CheckpointError("it contains an array of objects, which a saved state never does")
    return dtype


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


def _read_document(directory: Path, within: str | Path) -> dict[str, Any]:
    path = directory / _DOCUMENT
    with _reading(path):
        body = _checked_body(read_plain(path, within=within, limit=_MAX_DOCUMENT))
        if not _ARCHIVE.fullmatch(body["archive"]):
            raise CheckpointError(f"`archive` must be a file beside it; got {body['archive']!r}")
        return body


def _open_archive(directory: Path, within: str | Path) -> tuple[dict[str, Any], IO[bytes]]:
    """The document and its archive, opened; retries if a training run has just replaced both."""
    previous = None
    while True:
        body = _read_document(directory, within)
        path = directory / body["archive"]
        with _reading(path):
            try:
                return body, open_plain(path, within=within)
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
        _read_tensor(archive, f"{i}.npy", _Tensor(**entry))
        for i, entry in enumerate(body["tensors"])
    ]
    return _decode(body["state"], tensors, map_location)


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


def _decode(value: Any, tensors: list[torch.Tensor], place: Device) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors, place) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_TAG)
    if kind is None:
        return {key: _decode(item, tensors, place) for key, item in value.items()}
    if kind == "tensor":
        return tensors[value["index"]].to(place)
    if kind == "array":
        return _decode_array(value, tensors[value["index"]])
    if kind in ("bytes", "bytearray"):
        content = tensors[value["index"]].numpy().tobytes()
        return content if kind == "bytes" else bytearray(content)
    if kind == "tuple":
        return tuple(_decode(item, tensors, place) for item in value["items"])
    if kind == "dict":
        pairs = value["items"]
        return {_decode(k, tensors, place): _decode(v, tensors, place) for k, v in pairs}
    if kind == "float":
        return float(value["value"])
    if kind == "complex":
        return complex(*map(float, value["value"]))
    if kind == "int":
        return int(value["value"], 16)
    raise CheckpointError(
        f"it contains a {kind!r}, which this Everstep ({__version__}) does not know"
    )


def _decode_array(entry: dict[str, Any], content: torch.Tensor) -> Any:
    dtype, shape = _dtype_of(entry["dtype"]), tuple(entry["shape"])
    if content.dtype != torch.uint8 or len(content) != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(
            f"an array of {dtype} of shape {list(shape)} must have as many bytes; got "
            f"{content.dtype} of {list(content.shape)}"
        )
    array: Any = np.ndarray(shape, dtype, content.numpy().data)
    return array[()] if entry["scalar"] else array


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


def _names(directory: Path, archive: Path) -> bool:
    """Whether the document in the directory is the one of an archive."""
    try:
        return archive.name.encode() in (directory / _DOCUMENT).read_bytes()
    except FileNotFoundError:
        return False
