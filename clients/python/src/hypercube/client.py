"""Predictions over HTTP: keep-alive connections, one deadline per call, retries with a budget."""

from __future__ import annotations

import gzip
import http.client
import json
import random
import re
import socket
import ssl
import struct
import threading
import time
import zlib
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union
from urllib.parse import quote, urlencode, urlsplit

from .errors import HypercubeError, code_of_status
from .hashing import Features, read_field

_T = TypeVar("_T")

#: A retry costs one token; a call earns a tenth of one, so that retries stay below a tenth of the calls.
_TOKENS_PER_CALL = 0.1
_TOKENS_MAX = 10.0
_BACKOFF_FIRST_S = 0.01
_BACKOFF_MAX_S = 1.0
#: Smaller bodies are not worth compressing.
_COMPRESS_BYTES_MIN = 1024
_ANSWER_BYTES_MAX = 256 * 1024 * 1024
_IDLE_CONNECTIONS_MAX = 64
_RETRIED_STATUSES = (429, 502, 503)


@dataclass(frozen=True)
class Prediction:
    """Click probabilities of one request, and the version of graph and tables that made them."""

    probabilities: List[float]
    model: str
    version: str
    tables_version: str
    #: Lookups whose feature is not in the table.
    unseen: int
    #: Lookups that no replica answered; the default row was used.
    unavailable: int
    degraded: bool
    #: Variant by experiment, where experiments are running.
    experiments: Mapping[str, str] = field(default_factory=dict)


class Client:
    """A client of one serving process, or of several that serve the same models. Safe for use by several threads.

    A call tries the next address when there is no usable answer (status 429, 502, 503, or a broken connection), within
    its timeout and a budget of a tenth of the calls.
    """

    def __init__(
        self,
        urls: Union[str, Sequence[str]] = "http://127.0.0.1:8080",
        model: str = "",
        *,
        version: str = "",
        label: str = "",
        timeout_ms: int = 1000,
        retries_max: int = 2,
        compress: bool = False,
        api_key: str = "",
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        """
        urls: base addresses, such as `http://10.0.0.1:8080`
        model: name of the model; "" for the only one of the process (`predict_rows`, `predict_tsv`)
        version, label: version to use, or name of the channel that chooses it; "" for the active version
        timeout_ms: time for a call with its retries, in milliseconds
        retries_max: repeated tries of a call at most
        compress: send large bodies with gzip, and accept answers with it
        """
        addresses = [urls] if isinstance(urls, str) else list(urls)
        if not addresses:
            raise ValueError("give at least one address")
        self._addresses = [_Address(url, ssl_context) for url in addresses]
        if version and label:
            raise ValueError("give a version or a label, not both")
        self.model = model
        self.version = version
        self.label = label
        self.timeout_ms = timeout_ms
        self.retries_max = retries_max
        self.compress = compress
        self._api_key = api_key
        self._lock = threading.Lock()
        self._next = random.randrange(len(self._addresses))
        self._tokens = _TOKENS_MAX
        self._features: Optional[Features] = None

    def predict_rows(self, rows: Sequence[Mapping[str, Any]], **options: Any) -> Prediction:
        """Scores rows of named features, such as `{"I1": 5, "C1": "68fd1e64"}`; a feature left out is missing.

        options: `timeout_ms`, `experiment_key`, `priority` (0 is the highest)
        """
        body = json.dumps({"rows": list(rows)}).encode("utf-8")
        return self._predict(body, "application/json", options)

    def predict_tsv(self, lines: Union[str, bytes], **options: Any) -> Prediction:
        """Scores lines of tab-separated values in the order of the model's features."""
        body = lines.encode("utf-8") if isinstance(lines, str) else lines
        return self._predict(body, "text/tab-separated-values", options)

    def predict_columns(self, columns: Mapping[str, Sequence[Any]], **options: Any) -> Prediction:
        """Scores columns of named features, such as `{"I1": [5, None], "C1": ["68fd1e64", ""]}`."""
        features = self._require_features(options)
        slots = set(features.slots)
        inputs = []
        for name, values in columns.items():
            column = list(values)
            if name in slots:
                inputs.append({"name": name, "datatype": "BYTES", "shape": [len(column)], "data": column})
            else:
                data = [None if v is None or v != v else v for v in column]
                inputs.append({"name": name, "datatype": "FP64", "shape": [len(data)], "data": data})
        body = json.dumps({"inputs": inputs, **_parameters(options)}).encode("utf-8")
        return self._infer(body, None, features, options)

    def predict_arrays(self, keys: Any, dense: Any = None, **options: Any) -> Prediction:
        """Scores binary tensors: `keys` [rows, slots] (unsigned 64-bit) and `dense` [rows, dense features] (not scaled;
        NaN: missing), as NumPy arrays or nested sequences.
        """
        features = self._require_features(options)
        tensors = [_tensor("keys", keys, "UINT64", "Q", len(features.slots))]
        if features.dense:
            if dense is None:
                raise HypercubeError("INVALID_ARGUMENT", "dense: the model has dense features, give an array")
            tensors.append(_tensor("dense", dense, "FP32", "f", len(features.dense)))
        inputs = [
            {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
            for name, datatype, shape, data in tensors
        ]
        head = json.dumps({"inputs": inputs, **_parameters(options)}).encode("utf-8")
        body = head + b"".join(data for _, _, _, data in tensors)
        return self._infer(body, len(head), features, options)

    def features(self, **options: Any) -> Features:
        """Slots, dense features and hashing of the model; asked for once."""
        if self._features is None:
            path = f"/v1/models/{quote(self._model_name(options), safe='')}/features"
            self._features = self._call("GET", path, b"", {}, options, lambda _, answer: Features(answer))
        return self._features

    def hash_row(self, features: Sequence[Optional[str]]) -> List[int]:
        """The keys of a row: one value per slot."""
        return self.features().hash_row(features)

    def close(self) -> None:
        for address in self._addresses:
            address.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_features(self, options: Mapping[str, Any]) -> Features:
        return self.features(**{name: options[name] for name in ("timeout_ms",) if name in options})

    def _model_name(self, options: Mapping[str, Any]) -> str:
        if not self.model:
            names = self._call("GET", "/v2/models", b"", {}, options, _read_model_names)
            if len(names) != 1:
                raise HypercubeError("INVALID_ARGUMENT", f"the server has {len(names)} models: name one")
            self.model = names[0]
        return self.model

    def _predict(self, body: bytes, content_type: str, options: Mapping[str, Any]) -> Prediction:
        query = {"model": self.model, "version": self.version, "label": self.label}
        if "priority" in options:
            query["priority"] = str(options["priority"])
        text = urlencode({name: value for name, value in query.items() if value})
        path = "/v1/ctr:predict" + (f"?{text}" if text else "")
        return self._call("POST", path, body, {"Content-Type": content_type}, options, _read_prediction)

    def _infer(
        self, body: bytes, head_bytes: Optional[int], features: Features, options: Mapping[str, Any]
    ) -> Prediction:
        if self.label:
            raise HypercubeError("INVALID_ARGUMENT", "label: only predict_rows and predict_tsv take one")
        version = f"/versions/{quote(self.version, safe='')}" if self.version else ""
        path = f"/v2/models/{quote(self._model_name(options), safe='')}{version}/infer"
        headers = {"Content-Type": "application/json"}
        if head_bytes is not None:
            headers = {
                "Content-Type": "application/octet-stream",
                "Inference-Header-Content-Length": str(head_bytes),
            }
        click = features.description["click"]
        return self._call(
            "POST", path, body, headers, options, lambda answered, answer: _read_inference(answered, answer, click)
        )

    def _call(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Dict[str, str],
        options: Mapping[str, Any],
        read: Callable[[http.client.HTTPMessage, Dict[str, Any]], _T],
    ) -> _T:
        """Sends a request until there is an answer that a retry would not change.

        read: gives the result from headers and content, or raises ValueError where the answer is unusable
        """
        unknown = set(options) - {"timeout_ms", "experiment_key", "priority"}
        if unknown:
            raise TypeError(f"unknown option {sorted(unknown)[0]!r}")
        timeout_ms = options.get("timeout_ms", self.timeout_ms)
        deadline = time.monotonic() + timeout_ms / 1000
        headers = dict(headers)
        if options.get("experiment_key"):
            headers["x-experiment-key"] = _header_value("experiment_key", options["experiment_key"])
        if self._api_key:
            headers["Authorization"] = "Bearer " + _header_value("api_key", self._api_key)
        if self.compress:
            headers["Accept-Encoding"] = "gzip"
            if len(body) >= _COMPRESS_BYTES_MIN:
                body = gzip.compress(body, 1)
                headers["Content-Encoding"] = "gzip"
        with self._lock:
            self._tokens = min(_TOKENS_MAX, self._tokens + _TOKENS_PER_CALL)
            first = self._next
            self._next = (self._next + 1) % len(self._addresses)
        tries = 0
        while True:
            address = self._addresses[(first + tries) % len(self._addresses)]
            remaining_ms = round((deadline - time.monotonic()) * 1000)
            if remaining_ms < 1:
                raise HypercubeError("DEADLINE_EXCEEDED", f"no answer within {timeout_ms} ms")
            headers["timeout-ms"] = str(min(remaining_ms, 600_000))
            try:
                status, answered, content = address.send(method, path, body, headers, deadline)
                if status == 200:
                    return read(answered, _read_answer(content))
                error = _read_error(status, content)
                pause_s = _read_pause_s(answered.get("Retry-After", "")) if status == 429 else 0.0
            except (TimeoutError, socket.timeout):  # one class only from Python 3.10 on
                raise HypercubeError("DEADLINE_EXCEEDED", f"no answer within {timeout_ms} ms") from None
            except (OSError, http.client.HTTPException, ValueError, zlib.error) as problem:
                error = HypercubeError("UNAVAILABLE", f"{address.url}: {problem or type(problem).__name__}")
                pause_s = 0.0
            if error.status is not None and error.status not in _RETRIED_STATUSES:
                raise error
            backoff_s = random.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2**tries))
            pause_s = max(pause_s, backoff_s)
            tries += 1
            if tries > self.retries_max or time.monotonic() + pause_s >= deadline or not self._take_token():
                raise error
            time.sleep(pause_s)

    def _take_token(self) -> bool:
        with self._lock:
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


class _Address:
    """The idle connections to one address."""

    def __init__(self, url: str, ssl_context: Optional[ssl.SSLContext]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"address {url!r}: expected http://host:port or https://host:port")
        self.url = url
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._prefix = parts.path.rstrip("/")
        self._ssl = ssl_context
        self._lock = threading.Lock()
        self._idle: List[http.client.HTTPConnection] = []

    def send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], deadline: float
    ) -> Tuple[int, http.client.HTTPMessage, bytes]:
        connection, is_reused = self._take()
        try:
            return self._exchange(connection, method, path, body, headers, deadline)
        except (ConnectionError, http.client.RemoteDisconnected):
            connection.close()
            if not is_reused:
                raise
        # The server had closed the idle connection: that is no failed try.
        connection = self._connect()
        return self._exchange(connection, method, path, body, headers, deadline)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        deadline: float,
    ) -> Tuple[int, http.client.HTTPMessage, bytes]:
        is_reusable = False
        try:
            connection.timeout = _remaining_s(deadline)
            if connection.sock is not None:
                connection.sock.settimeout(_remaining_s(deadline))
            connection.request(method, self._prefix + path, body, dict(headers))
            sock = connection.sock
            response = connection.getresponse()
            is_packed = response.headers.get("Content-Encoding") == "gzip"
            unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS) if is_packed else None
            chunks: List[bytes] = []
            total = 0
            size = 0
            while True:
                if sock is not None and sock.fileno() >= 0:
                    sock.settimeout(_remaining_s(deadline))
                chunk = response.read1(65536)
                if not chunk:
                    break
                total += len(chunk)
                if unpacker is not None:
                    # The limit holds while decompressing: a small answer may be gigabytes of zeros.
                    chunk = unpacker.decompress(chunk, _ANSWER_BYTES_MAX + 1 - size)
                    if unpacker.unused_data:
                        raise ValueError("the answer goes on after the end of gzip")
                size += len(chunk)
                if size > _ANSWER_BYTES_MAX or total > _ANSWER_BYTES_MAX:
                    raise ValueError(f"the answer is larger than {_ANSWER_BYTES_MAX} bytes")
                chunks.append(chunk)
            response.close()  # read1 does not, and the connection takes no request before
            announced = response.headers.get("Content-Length")
            if announced is not None and total != int(announced):
                raise ConnectionError(f"the answer ended after {total} of {announced} bytes")
            if unpacker is not None and total > 0 and not unpacker.eof:
                raise ValueError("the answer ended before the end of gzip")
            content = b"".join(chunks)
            is_reusable = not response.will_close
            return response.status, response.headers, content
        finally:
            if is_reusable:
                self._put(connection)
            else:
                connection.close()

    def _take(self) -> Tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        return self._connect(), False

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(self._host, self._port, context=self._ssl)
        return http.client.HTTPConnection(self._host, self._port)

    def _put(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _remaining_s(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _read_answer(content: bytes) -> Dict[str, Any]:
    try:
        answer = json.loads(content)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")
    return answer


def _read_prediction(headers: http.client.HTTPMessage, answer: Dict[str, Any]) -> Prediction:
    return _to_prediction(headers, answer, "model", "version", answer, read_field(answer, "probabilities", list))


def _read_inference(headers: http.client.HTTPMessage, answer: Dict[str, Any], click: Mapping[str, Any]) -> Prediction:
    for output in read_field(answer, "outputs", list):
        if read_field(output, "name", str) == click["output"]:
            break
    else:
        raise ValueError(f"the answer has no output {click['output']!r}")
    data = read_field(output, "data", list)
    shape = read_field(output, "shape", list)
    column = click.get("column", 0)
    rows = shape[0] if shape and isinstance(shape[0], int) else -1
    width = len(data) // rows if rows > 0 else column + 1
    if rows < 0 or width <= column or len(data) != rows * width:
        raise ValueError(f"the answer has {len(data)} values for shape {shape}")
    counts = read_field(answer, "parameters", dict)
    return _to_prediction(headers, answer, "model_name", "model_version", counts, data[column::width])


def _to_prediction(
    headers: http.client.HTTPMessage,
    answer: Mapping[str, Any],
    model: str,
    version: str,
    counts: Mapping[str, Any],
    probabilities: List[Any],
) -> Prediction:
    if not all(type(value) in (float, int) for value in probabilities):
        raise ValueError("the answer has a probability that is not a number")
    return Prediction(
        probabilities=probabilities,
        model=read_field(answer, model, str),
        version=read_field(answer, version, str),
        tables_version=read_field(counts, "tables_version", str),
        unseen=read_field(counts, "unseen", int),
        unavailable=read_field(counts, "unavailable", int),
        degraded=read_field(counts, "degraded", bool),
        experiments=_read_experiments(headers),
    )


def _read_model_names(_: http.client.HTTPMessage, answer: Dict[str, Any]) -> List[str]:
    names = read_field(answer, "models", list)
    if not all(isinstance(name, str) for name in names):
        raise ValueError("the answer has a model whose name is not text")
    return names


def _read_error(status: int, content: bytes) -> HypercubeError:
    code = code_of_status(status)
    try:
        answer = _read_answer(content)
        message = read_field(answer, "error", str)
        return HypercubeError(read_field(answer, "code", str) if answer.get("code") else code, message, status)
    except ValueError:
        return HypercubeError(code, f"HTTP status {status}", status)


def _read_pause_s(text: str) -> float:
    """The pause of a Retry-After header, which is a number of seconds or a date; 0 for other text, as without one."""
    if re.fullmatch("[0-9]+", text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError):  # by version of Python
        return 0.0
    if date.tzinfo is None:  # "-0000"
        date = date.replace(tzinfo=timezone.utc)
    return (date - datetime.now(timezone.utc)).total_seconds()


def _header_value(name: str, text: str) -> str:
    """The UTF-8 bytes of the text, which the server reads, as the Latin-1 that http.client writes."""
    if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", text):
        raise HypercubeError("INVALID_ARGUMENT", f"{name}: a header has no control characters and no lone surrogates")
    return text.encode().decode("latin-1")


def _read_experiments(headers: http.client.HTTPMessage) -> Dict[str, str]:
    pairs = (pair.partition("=") for pair in headers.get("hypercube-experiments", "").split(","))
    return {name.strip(): variant.strip() for name, _, variant in pairs if name.strip()}


def _parameters(options: Mapping[str, Any]) -> Dict[str, Any]:
    """KServe counts priorities from 1."""
    return {"parameters": {"priority": options["priority"] + 1}} if "priority" in options else {}


def _tensor(name: str, values: Any, datatype: str, code: str, width: int) -> Tuple[str, str, List[int], bytes]:
    """A tensor [rows, width] as little-endian bytes, row by row."""
    if hasattr(values, "astype"):  # a NumPy array
        if values.ndim != 2 or values.shape[1] != width:
            raise HypercubeError("INVALID_ARGUMENT", f"{name}: expected shape [rows, {width}], got {values.shape}")
        data = values.astype("<u8" if code == "Q" else "<f4", order="C", copy=False).tobytes()
        return name, datatype, [int(values.shape[0]), width], data
    rows = [list(row) for row in values]
    for i, row in enumerate(rows):
        if len(row) != width:
            raise HypercubeError("INVALID_ARGUMENT", f"{name}, row {i}: expected {width} values, got {len(row)}")
    flat = [float("nan") if v is None else v for row in rows for v in row]
    return name, datatype, [len(rows), width], struct.pack(f"<{len(flat)}{code}", *flat)
