#!/usr/bin/env python3
"""Trains the CTR-DNN of Paddle's examples on Criteo-format rows and exports it as one ONNX file.

26 slots share one embedding table of 100001 x 10; the embeddings and 13 dense features go through fc 400-400-400-2
(relu) and a softmax. It also writes features.json, which describes how features become ids and dense inputs, and
training.json with the reached metrics. The same rows, seed and torch version give the same model.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch
import xxhash
from torch import nn

DENSE_NAMES = [f"I{i}" for i in range(1, 14)]
SLOT_NAMES = [f"C{i}" for i in range(1, 27)]
# As in Paddle's Criteo reader, a slot's index is its column in the row.
SLOT_INDICES = list(range(14, 40))
HASH_SEED = 0
TABLE_ROWS = 100_001
TABLE_DIM = 10
HIDDEN = 400


# --- rows -------------------------------------------------------------------------------------------------------------


class Hasher:
    """id = xxh64(utf8(str(slot index) + feature)) mod table rows; each distinct feature is hashed once."""

    def __init__(self):
        self._known = [{} for _ in SLOT_NAMES]

    def ids(self, features):
        """The ids of a row's 26 feature strings; a missing feature is the empty string and is hashed like any other."""
        row = []
        for slot, feature in enumerate(features):
            known = self._known[slot]
            key = known.get(feature)
            if key is None:
                text = f"{SLOT_INDICES[slot]}{feature}".encode()
                key = known[feature] = xxhash.xxh64_intdigest(text, seed=HASH_SEED) % TABLE_ROWS
            row.append(key)
        return row


def read_rows(path, hasher):
    """Returns labels [n] i64, dense [n, 13] f64 with NaN where missing, and ids [n, 26] i64."""
    labels, dense, ids = [], [], []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\n").split("\t")
            if len(fields) != 40:
                raise SystemExit(f"{path}:{number}: {len(fields)} columns, expected label, 13 integers, 26 categories")
            labels.append(fields[0] == "1")
            dense.append([float(field) if field else math.nan for field in fields[1:14]])
            ids.append(np.array(hasher.ids(fields[14:]), dtype=np.int32))
    return np.array(labels, dtype=np.int64), np.array(dense), np.stack(ids).astype(np.int64)


# --- dense features ---------------------------------------------------------------------------------------------------


def significant(value):
    """Rounds to six significant digits: short in JSON, and exactly what training uses."""
    return float(f"{value:.6g}")


def fit_dense(dense):
    """Returns the DenseFeature of each column: logarithm, then mean 0 and standard deviation 1 over the training rows.

    A missing value becomes the mean, which is neutral and equals no integer by chance.
    """
    features = []
    for column, name in zip(dense.T, DENSE_NAMES):
        logs = np.log(1 + np.maximum(column[~np.isnan(column)], 0))
        features.append({
            "name": name,
            "missing": significant(math.exp(logs.mean()) - 1),
            "log": True,
            "shift": significant(logs.mean()),
            "scale": significant(1 / max(logs.std(), 1e-6)),
        })
    return features


def scale_dense(dense, features):
    """Returns [n, 13] f32, computed in double and rounded once, so that every reader of features.json gets the same floats."""
    columns = []
    for column, feature in zip(dense.T, features):
        x = np.where(np.isnan(column), feature["missing"], column)
        if feature["log"]:
            x = np.log(1 + np.maximum(x, 0))
        columns.append((x - feature["shift"]) * feature["scale"])
    return np.stack(columns, axis=1).astype(np.float32)


# --- model ------------------------------------------------------------------------------------------------------------


class CtrDnn(nn.Module):
    """ids [batch, 26] i64, dense [batch, 13] f32 -> logits [batch, 2]."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TABLE_ROWS, TABLE_DIM, sparse=True)
        nn.init.normal_(self.embedding.weight, std=0.01)
        self.fc1 = nn.Linear(len(SLOT_NAMES) * TABLE_DIM + len(DENSE_NAMES), HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, HIDDEN)
        self.fc3 = nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, 2)

    def forward(self, ids, dense):
        x = torch.cat([self.embedding(ids).flatten(1), dense], dim=1)
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        x = torch.relu(self.fc3(x))
        return self.out(x)


class Probabilities(nn.Module):
    """The exported model: column 1 of its output is the click probability."""

    def __init__(self, model):
        super().__init__()
        self.embedding, self.fc1, self.fc2 = model.embedding, model.fc1, model.fc2
        self.fc3, self.out = model.fc3, model.out

    def forward(self, ids, dense):
        return torch.softmax(CtrDnn.forward(self, ids, dense), dim=1)


def train(model, labels, dense, ids, options):
    """Adam with a learning rate that falls to zero; sparse on the table, so that rows of absent ids do not change."""
    tower = [p for name, p in model.named_parameters() if not name.startswith("embedding")]
    optimizers = [
        torch.optim.SparseAdam(model.embedding.parameters(), lr=options.table_rate),
        torch.optim.AdamW(tower, lr=options.rate, weight_decay=options.weight_decay),
    ]
    batches = math.ceil(len(labels) / options.batch)
    steps = batches * options.epochs
    decay = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 - step / steps) for o in optimizers]
    order = torch.Generator().manual_seed(options.seed)
    started = time.time()
    for epoch in range(options.epochs):
        shuffled = torch.randperm(len(labels), generator=order)
        total = 0.0
        for batch in range(batches):
            rows = shuffled[batch * options.batch:(batch + 1) * options.batch]
            loss = nn.functional.cross_entropy(model(ids[rows], dense[rows]), labels[rows])
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for optimizer, schedule in zip(optimizers, decay):
                optimizer.step()
                schedule.step()
            total += loss.item()
            if (batch + 1) % 200 == 0:
                print(f"epoch {epoch + 1}  batch {batch + 1}/{batches}  logloss {total / 200:.4f}"
                      f"  {time.time() - started:.0f} s", flush=True)
                total = 0.0


def predict(served, dense, ids):
    with torch.no_grad():
        parts = [served(i, d)[:, 1] for i, d in zip(ids.split(8192), dense.split(8192))]
    return torch.cat(parts).double().numpy()


# --- metrics ----------------------------------------------------------------------------------------------------------


def auc(labels, scores):
    """Area under the ROC curve, from ranks; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    clicks = labels.sum()
    return float((ranks[inverse][labels == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(labels) - clicks)))


def logloss(labels, probabilities):
    p = np.clip(probabilities, 1e-15, 1 - 1e-15)
    return float(-np.mean(np.where(labels == 1, np.log(p), np.log(1 - p))))


def metrics(labels, probabilities):
    return {"auc": round(auc(labels, probabilities), 5), "logloss": round(logloss(labels, probabilities), 5)}


# --- files ------------------------------------------------------------------------------------------------------------


def export(served, path):
    """Exports inputs ids and dense and output prob for any batch size; exactly one Gather reads the table."""
    example = (torch.zeros(2, len(SLOT_NAMES), dtype=torch.int64), torch.zeros(2, len(DENSE_NAMES)))
    names = ["ids", "dense", "prob"]
    torch.onnx.export(served, example, path, opset_version=13, input_names=names[:2], output_names=names[2:],
                      dynamic_axes={name: {0: "batch"} for name in names})


def features_document(dense_features):
    return {
        "format": 1,
        "hash": {"scheme": "xxh64-concat", "seed": str(HASH_SEED), "modulo": str(TABLE_ROWS)},
        "slots": [{"name": name, "index": index} for name, index in zip(SLOT_NAMES, SLOT_INDICES)],
        "dense": {"input": "dense", "features": dense_features},
        "click": {"output": "prob", "column": 1},
        "ids": [{"input": "ids", "slots": SLOT_NAMES}],
    }


def write_json(path, document):
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def evaluate(served, dense_features, hasher, options):
    """Metrics on test rows, and the best reachable ones when the true probabilities are given."""
    labels, dense, ids = read_rows(options.test, hasher)
    probabilities = predict(served, torch.from_numpy(scale_dense(dense, dense_features)), torch.from_numpy(ids))
    result = {"rows": len(labels), "reached": metrics(labels, probabilities)}
    if options.test_truth:
        result["best"] = metrics(labels, np.loadtxt(options.test_truth))
    return result


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", required=True, metavar="TSV", help="training rows")
    parser.add_argument("--test", required=True, metavar="TSV", help="test rows, none of them in --train")
    parser.add_argument("--test-truth", metavar="FILE", help="true click probabilities of --test, from generate-rows --truth")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="folder for model.onnx, features.json and training.json")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and row order (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the training rows (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=512, help="rows per step (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of the dense layers (default: %(default)s)")
    parser.add_argument("--table-rate", type=float, default=2e-3, help="learning rate of the table (default: %(default)s)")
    parser.add_argument("--weight-decay", type=float, default=0.01, help="weight decay of the dense layers (default: %(default)s)")
    return parser.parse_args()


def main():
    options = parse_options()
    torch.manual_seed(options.seed)
    # One thread and deterministic kernels add sums always in the same order.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    hasher = Hasher()
    labels, dense, ids = read_rows(options.train, hasher)
    dense_features = fit_dense(dense)
    print(f"{len(labels)} training rows, {100 * labels.mean():.2f}% clicks", flush=True)

    model = CtrDnn()
    scaled = torch.from_numpy(scale_dense(dense, dense_features))
    train(model, torch.from_numpy(labels), scaled, torch.from_numpy(ids), options)
    served = Probabilities(model).eval()
    result = evaluate(served, dense_features, hasher, options)
    print(json.dumps(result))

    os.makedirs(options.output, exist_ok=True)
    export(served, os.path.join(options.output, "model.onnx"))
    write_json(os.path.join(options.output, "features.json"), features_document(dense_features))
    write_json(os.path.join(options.output, "training.json"), {
        "rows": len(labels), "seed": options.seed, "epochs": options.epochs, "batch": options.batch,
        "rate": options.rate, "tableRate": options.table_rate, "weightDecay": options.weight_decay,
        "torch": torch.__version__, "test": result,
    })


if __name__ == "__main__":
    main()
