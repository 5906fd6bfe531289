"""Writes model.onnx and its external data, a sparse file: `large_table.py FOLDER GIB`."""
import os
import sys

DIM = 64


def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append((n & 0x7F) | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def number(field, n):
    return varint(field << 3) + varint(n)


def data(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def port(name, kind, *dims):
    shape = b"".join(data(1, number(1, d) if isinstance(d, int) else data(2, d)) for d in dims)
    return data(1, name) + data(2, data(1, number(1, kind) + data(2, shape)))


def node(kind, inputs, output):
    return b"".join(data(1, i) for i in inputs) + data(2, output) + data(4, kind)


def main(folder, gib):
    rows = gib * 2**30 // (4 * DIM)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "table.bin"), "wb") as file:
        file.truncate(rows * 4 * DIM)
    entry = data(13, data(1, "location") + data(2, "table.bin"))
    table = number(1, rows) + number(1, DIM) + number(2, 1) + data(8, "table") + entry + number(14, 1)
    graph = data(1, node("Gather", ["table", "ids"], "rows")) + data(1, node("Sigmoid", ["rows"], "y"))
    graph += data(2, "large") + data(5, table) + data(11, port("ids", 7, "batch", 4))
    graph += data(12, port("y", 1, "batch", 4, DIM))
    model = number(1, 8) + data(7, graph) + data(8, data(1, "") + number(2, 13))
    with open(os.path.join(folder, "model.onnx"), "wb") as file:
        file.write(model)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
