// Command conformance runs the shared cases with this client: conformance CASES URL VECTORS. It prints a JSON line per
// case.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"hypercube"
)

type testCase struct {
	Name     string `json:"name"`
	Call     string `json:"call"`
	Scenario string `json:"scenario"`
	Repeat   int    `json:"repeat"`
	Client   struct {
		Model      string `json:"model"`
		Version    string `json:"version"`
		Label      string `json:"label"`
		TimeoutMs  int    `json:"timeout_ms"`
		RetriesMax *int   `json:"retries_max"`
		Compress   bool   `json:"compress"`
		APIKey     string `json:"api_key"`
	} `json:"client"`
	Options struct {
		ExperimentKey string `json:"experiment_key"`
		Priority      *int   `json:"priority"`
	} `json:"options"`
	Input struct {
		Rows     []map[string]any `json:"rows"`
		Text     string           `json:"text"`
		Times    int              `json:"times"`
		Columns  map[string][]any `json:"columns"`
		Keys     [][]string       `json:"keys"`
		Dense    [][]*float32     `json:"dense"`
		Features []*string        `json:"features"`
	} `json:"input"`
}

type vector struct {
	Scheme  string `json:"scheme"`
	Slot    uint32 `json:"slot"`
	Feature string `json:"feature"`
	Seed    uint64 `json:"seed,string"`
	Modulo  uint64 `json:"modulo,string"`
	Key     uint64 `json:"key,string"`
}

func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}

func fail(err error) {
	if err != nil {
		panic(err)
	}
}

func readJSON(path string, into any) {
	content, err := os.ReadFile(path)
	fail(err)
	fail(json.Unmarshal(content, into))
}

func countWrong(path string) int {
	var vectors []vector
	readJSON(path, &vectors)
	wrong := 0
	for _, v := range vectors {
		key, err := hypercube.HashKey(v.Slot, v.Feature, v.Scheme, v.Seed, v.Modulo)
		if err != nil || key != v.Key {
			wrong++
		}
	}
	return wrong
}

func splitColumns(columns map[string][]any) hypercube.Columns {
	split := hypercube.Columns{Categorical: map[string][]string{}, Dense: map[string][]float64{}}
	for name, values := range columns {
		for _, value := range values {
			switch v := value.(type) {
			case string:
				split.Categorical[name] = append(split.Categorical[name], v)
			case float64:
				split.Dense[name] = append(split.Dense[name], v)
			default:
				split.Dense[name] = append(split.Dense[name], math.NaN())
			}
		}
	}
	return split
}

func toArrays(keys [][]string, dense [][]*float32) ([][]uint64, [][]float32) {
	ids := make([][]uint64, len(keys))
	for i, row := range keys {
		for _, text := range row {
			key, err := strconv.ParseUint(text, 10, 64)
			fail(err)
			ids[i] = append(ids[i], key)
		}
	}
	values := make([][]float32, len(dense))
	for i, row := range dense {
		for _, value := range row {
			if value == nil {
				values[i] = append(values[i], float32(math.NaN()))
			} else {
				values[i] = append(values[i], *value)
			}
		}
	}
	return ids, values
}

func predict(client *hypercube.Client, c testCase) (*hypercube.Prediction, error) {
	ctx := context.Background()
	options := hypercube.CallOptions{ExperimentKey: c.Options.ExperimentKey, Priority: c.Options.Priority}
	switch c.Call {
	case "rows":
		return client.PredictRows(ctx, c.Input.Rows, options)
	case "tsv":
		return client.PredictTSV(ctx, strings.Repeat(c.Input.Text, max(c.Input.Times, 1)), options)
	case "columns":
		return client.PredictColumns(ctx, splitColumns(c.Input.Columns), options)
	default:
		keys, dense := toArrays(c.Input.Keys, c.Input.Dense)
		return client.PredictArrays(ctx, keys, dense, options)
	}
}

func run(c testCase, url, vectors string) map[string]any {
	result := map[string]any{"name": c.Name}
	if c.Call == "vectors" {
		result["wrong"] = countWrong(vectors)
		return result
	}
	if c.Scenario == "" {
		c.Scenario = "plain"
	}
	options := hypercube.Options{
		Model: c.Client.Model, Version: c.Client.Version, Label: c.Client.Label, Compress: c.Client.Compress,
		APIKey: c.Client.APIKey, Timeout: time.Duration(c.Client.TimeoutMs) * time.Millisecond,
	}
	if c.Client.RetriesMax != nil {
		options.RetriesMax = *c.Client.RetriesMax
		if options.RetriesMax == 0 {
			options.RetriesMax = -1
		}
	}
	client, err := hypercube.NewClient([]string{url + "/" + c.Scenario}, options)
	fail(err)
	defer client.Close()
	codes := []string{}
	for i := 0; i == 0 || i < c.Repeat; i++ {
		var err error
		if c.Call == "hash_row" {
			features := make([]string, len(c.Input.Features))
			for j, feature := range c.Input.Features {
				if feature != nil {
					features[j] = *feature
				}
			}
			var keys []uint64
			keys, err = client.HashRow(context.Background(), features)
			texts := []string{}
			for _, key := range keys {
				texts = append(texts, strconv.FormatUint(key, 10))
			}
			result["keys"] = texts
		} else {
			var prediction *hypercube.Prediction
			if prediction, err = predict(client, c); err == nil {
				result["probabilities"] = prediction.Probabilities
				result["version"] = prediction.Version
				result["unseen"] = prediction.Unseen
				result["degraded"] = prediction.Degraded
				result["experiments"] = prediction.Experiments
			}
		}
		code := "OK"
		var failure *hypercube.Error
		if errors.As(err, &failure) {
			code = failure.Code
		} else if err != nil { // no call returns others: the test shows them
			code = err.Error()
		}
		codes = append(codes, code)
	}
	result["codes"] = codes
	return result
}

func main() {
	var cases struct {
		Cases []testCase `json:"cases"`
	}
	readJSON(os.Args[1], &cases)
	encoder := json.NewEncoder(os.Stdout)
	for _, c := range cases.Cases {
		fail(encoder.Encode(run(c, os.Args[2], os.Args[3])))
	}
}
