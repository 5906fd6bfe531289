"""Exports the small PyTorch models of data/golden/models: each contains one lookup pattern of real CTR models.

    python3 export.py ../../data/golden/models
"""
import sys
import warnings

import torch
import torch.nn as nn

warnings.filterwarnings("ignore")
torch.manual_seed(1)


class Fields(nn.Module):
    """One table for all fields: ids [batch, 3] plus the offset of each field."""

    def __init__(self):
        super().__init__()
        self.register_buffer("offsets", torch.tensor([[0, 10, 25]]))
        self.table = nn.Embedding(40, 4)
        self.linear = nn.Embedding(40, 1)
        self.out = nn.Linear(12, 1)

    def forward(self, ids):
        keys = ids + self.offsets
        deep = self.out(self.table(keys).flatten(1))
        return torch.sigmoid(deep + self.linear(keys).sum(1))


class QuotientRemainder(nn.Module):
    """Two small tables instead of a large one: one for id // 7, one for id % 7."""

    def __init__(self):
        super().__init__()
        self.quotient = nn.Embedding(15, 4)
        self.remainder = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, ids):
        high = torch.div(ids, 7, rounding_mode="floor")
        return self.out(self.quotient(high) * self.remainder(ids % 7))


class FloatMatrix(nn.Module):
    """Ids and dense features in one float matrix, as in DeepCTR-Torch."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(9 + i, 4) for i in range(2)])
        self.out = nn.Linear(10, 1)

    def forward(self, x):
        rows = [table(x[:, i : i + 1].long()) for i, table in enumerate(self.tables)]
        dense = torch.cat([torch.cat(rows, -1).flatten(1), x[:, 2:4]], 1)
        return torch.sigmoid(self.out(dense))


class Bags(nn.Module):
    """An EmbeddingBag: each bag of ids is pooled to one row."""

    def __init__(self, mode):
        super().__init__()
        self.table = nn.EmbeddingBag(20, 4, mode=mode)
        self.out = nn.Linear(4, 1)

    def forward(self, ids, offsets):
        return self.out(self.table(ids, offsets))


class Interaction(nn.Module):
    """Bags of two tables with offsets in the rows of one matrix, and products of the pooled rows, as in DLRM."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(9 + i, 4, mode="sum") for i in range(2)])
        self.bottom = nn.Linear(3, 4)
        self.top = nn.Linear(7, 1)

    def forward(self, dense, offsets, ids0, ids1):
        bags = [table(ids, offsets[i]) for i, (table, ids) in enumerate(zip(self.tables, (ids0, ids1)))]
        x = self.bottom(dense)
        all = torch.stack([x] + bags, 1)
        products = torch.bmm(all, all.transpose(1, 2))[:, [1, 2, 2], [0, 0, 1]]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))


class History(nn.Module):
    """A padded sequence of ids, pooled with a mask computed from the ids."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, 4, padding_idx=0)
        self.out = nn.Linear(4, 1)

    def forward(self, ids):
        mask = (ids != 0).unsqueeze(-1).float()
        pooled = (self.table(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.sigmoid(self.out(pooled))


def export(folder, name, model, inputs, names, axes, **options):
    options.setdefault("opset_version", 13)
    torch.onnx.export(
        model.eval(), inputs, f"{folder}/{name}.onnx", input_names=names, output_names=["y"], dynamic_axes=axes, **options
    )


def main(folder):
    n = {"ids": {0: "batch"}}
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    bag = (torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2]))
    bag_axes = {"ids": {0: "length"}, "offsets": {0: "batch"}}
    export(folder, "fields-9", Fields(), (ids,), ["ids"], n, opset_version=9)
    export(folder, "fields-16", Fields(), (ids,), ["ids"], n, opset_version=16)
    export(folder, "quotient-remainder", QuotientRemainder(), (ids[:, :1],), ["ids"], n)
    export(folder, "float-matrix", FloatMatrix(), (torch.zeros(2, 4),), ["x"], {"x": {0: "batch"}})
    for mode in ("sum", "mean"):
        for opset in (11, 13):
            export(folder, f"bag-{mode}-{opset}", Bags(mode), bag, ["ids", "offsets"], bag_axes, opset_version=opset)
    export(folder, "history", History(), (ids,), ["ids"], {"ids": {0: "batch", 1: "length"}})
    many = (torch.zeros(2, 3), torch.tensor([[0, 2], [0, 1]]), torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]))
    many_axes = {"dense": {0: "batch"}, "offsets": {1: "batch"}, "ids0": {0: "length0"}, "ids1": {0: "length1"}}
    export(folder, "interaction", Interaction(), many, ["dense", "offsets", "ids0", "ids1"], many_axes)
    functions = {"opset_version": 15, "export_modules_as_functions": {nn.Embedding}}
    export(folder, "functions", FloatMatrix(), (torch.zeros(2, 4),), ["x"], {"x": {0: "batch"}}, **functions)


if __name__ == "__main__":
    main(sys.argv[1])
