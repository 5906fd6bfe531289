"""Trains a small DLRM-like model and exports it to ONNX, with rows and their scores.

    python3 dlrm.py model.onnx rows.tsv scores.csv

Tested with torch 1.13; where torch exports by dynamo by default, add dynamo=False to the export.
"""
import sys

import torch
import torch.nn as nn

GENRES, TAGS, DIM = 9, 10, 4


class Dlrm(nn.Module):
    """Bags of two tables, and products of the pooled rows and the dense features."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(n, DIM, mode="sum") for n in (GENRES, TAGS)])
        self.bottom = nn.Linear(3, DIM)
        self.top = nn.Linear(7, 1)

    def forward(self, dense, offsets, ids0, ids1):
        bags = [table(ids, offsets[i]) for i, (table, ids) in enumerate(zip(self.tables, (ids0, ids1)))]
        x = self.bottom(dense)
        all = torch.stack([x] + bags, 1)
        products = torch.bmm(all, all.transpose(1, 2))[:, [1, 2, 2], [0, 0, 1]]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))


def make_rows(count):
    """Rows as requests have them: age, clicks, price, genres, tags. Your data goes here."""
    draw = lambda n, most: [int(i) for i in torch.randint(n, (int(torch.randint(most, ())),))]
    return [
        (20 + i % 50, i % 100, 0.5 * (i % 20), draw(GENRES, 3), draw(TAGS, 4)) for i in range(count)
    ]


def make_tensors(rows):
    """The preprocessing, which features.json describes for serving."""
    dense = [[(age - 35) * 0.1, torch.log1p(torch.tensor(float(clicks))), price] for age, clicks, price, _, _ in rows]
    ids = [[i for row in rows for i in row[column]] for column in (3, 4)]
    lengths = [[len(row[column]) for row in rows] for column in (3, 4)]
    offsets = torch.tensor(lengths).cumsum(1) - torch.tensor(lengths)
    return torch.tensor(dense), offsets, torch.tensor(ids[0]), torch.tensor(ids[1])


def main(model_path, rows_path, scores_path):
    torch.manual_seed(1)
    model = Dlrm()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(100):
        rows = make_rows(256)
        labels = torch.tensor([[float(len(row[4]) > 1)] for row in rows])
        loss = nn.functional.binary_cross_entropy(model(*make_tensors(rows)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    rows = make_rows(1000)
    tensors = make_tensors(rows)
    model.eval()
    torch.onnx.export(
        model, tensors, model_path, opset_version=16, do_constant_folding=True,
        input_names=["dense", "offsets", "ids0", "ids1"], output_names=["y"],
        dynamic_axes={"dense": {0: "batch"}, "offsets": {1: "batch"}, "ids0": {0: "length0"}, "ids1": {0: "length1"}},
    )
    with open(rows_path, "w") as file:
        for age, clicks, price, genres, tags in rows:
            print(age, clicks, price, ",".join(map(str, genres)), ",".join(map(str, tags)), sep="\t", file=file)
    with torch.no_grad(), open(scores_path, "w") as file:
        for score in model(*tensors)[:, 0].tolist():
            print(score, file=file)


main(*sys.argv[1:])
