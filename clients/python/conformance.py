"""Runs the shared cases with this client: python3 conformance.py CASES URL VECTORS. Prints a JSON line per case."""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "src"))
from hypercube import Client, HypercubeError, hash_key  # noqa: E402


def call(client, case):
    kind, given = case["call"], case.get("input", {})
    options = case.get("options", {})
    if kind == "rows":
        return client.predict_rows(given["rows"], **options)
    if kind == "tsv":
        return client.predict_tsv(given["text"] * given.get("times", 1), **options)
    if kind == "columns":
        return client.predict_columns(given["columns"], **options)
    keys = [[int(key) for key in row] for row in given["keys"]]
    return client.predict_arrays(keys, given["dense"], **options)


def describe(prediction):
    return {
        "probabilities": list(prediction.probabilities),
        "version": prediction.version,
        "unseen": prediction.unseen,
        "degraded": prediction.degraded,
        "experiments": dict(prediction.experiments),
    }


def run(case, url, vectors):
    if case["call"] == "vectors":
        with open(vectors, encoding="utf-8") as file:
            wrong = [
                v
                for v in json.load(file)
                if str(hash_key(v["slot"], v["feature"], v["scheme"], int(v["seed"]), int(v["modulo"]))) != v["key"]
            ]
        return {"wrong": len(wrong)}
    result = {"codes": []}
    with Client(f"{url}/{case.get('scenario', 'plain')}", **case.get("client", {})) as client:
        for _ in range(case.get("repeat", 1)):
            try:
                if case["call"] == "hash_row":
                    result["keys"] = [str(key) for key in client.hash_row(case["input"]["features"])]
                else:
                    result.update(describe(call(client, case)))
                result["codes"].append("OK")
            except HypercubeError as error:
                result["codes"].append(error.code)
            except Exception as error:  # no client raises others: the test shows their names
                result["codes"].append(repr(error))
    return result


def main():
    cases, url, vectors = sys.argv[1:]
    with open(cases, encoding="utf-8") as file:
        for case in json.load(file)["cases"]:
            print(json.dumps({"name": case["name"], **run(case, url, vectors)}), flush=True)


main()
