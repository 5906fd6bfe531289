// Package hypercube is a client of Hypercube serving: predictions over HTTP with one deadline per call, retries with a
// budget, and the hashing of features into keys.
package hypercube

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// A retry costs one token; a call earns a tenth of one, so that retries stay below a tenth of the calls.
	tokensPerCall    = 0.1
	tokensMax        = 10.0
	backoffFirst     = 10 * time.Millisecond
	backoffMax       = time.Second
	compressBytesMin = 1024
	answerBytesMax   = 256 << 20
	timeoutMax       = 600 * time.Second
)

// Error is a call that failed. Code is the server's error code, or UNAVAILABLE (no usable answer), DEADLINE_EXCEEDED
// (the timeout passed) and INVALID_ARGUMENT (wrong arguments) where the client itself found the problem. Status is the
// HTTP status, 0 without an answer.
type Error struct {
	Code    string
	Message string
	Status  int
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Options of a client. The zero value of each field is its default.
type Options struct {
	Model      string        // "": the only model of the process
	Version    string        // "": the active version
	Label      string        // name of the channel that chooses the version; only for rows and TSV
	Timeout    time.Duration // of a call with its retries; default 1 s. A shorter deadline of the context wins
	RetriesMax int           // repeated tries of a call at most; default 2, negative: none
	Compress   bool          // send large bodies with gzip, and accept answers with it
	APIKey     string
	HTTPClient *http.Client
}

// CallOptions belong to one call.
type CallOptions struct {
	ExperimentKey string
	Priority      *int // 0 is the highest
}

// Prediction has the click probabilities of a request, and the version of graph and tables that made them.
type Prediction struct {
	Probabilities []float64
	Model         string
	Version       string
	TablesVersion string
	Unseen        int // lookups whose feature is not in the table
	Unavailable   int // lookups that no replica answered; the default row was used
	Degraded      bool
	Experiments   map[string]string // variant by experiment
}

// Client of one serving process, or of several that serve the same models. Safe for concurrent use.
type Client struct {
	urls     []string
	options  Options
	http     *http.Client
	mutex    sync.Mutex
	next     int
	tokens   float64
	features *Features
}

// NewClient returns a client of the processes at the base addresses, such as "http://10.0.0.1:8080".
func NewClient(urls []string, options Options) (*Client, error) {
	if len(urls) == 0 {
		return nil, errors.New("give at least one address")
	}
	trimmed := make([]string, len(urls))
	for i, text := range urls {
		parsed, err := url.Parse(text)
		if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
			return nil, fmt.Errorf("address %q: expected http://host:port or https://host:port", text)
		}
		trimmed[i] = strings.TrimRight(text, "/")
	}
	if options.Version != "" && options.Label != "" {
		return nil, errors.New("give a version or a label, not both")
	}
	if options.Timeout == 0 {
		options.Timeout = time.Second
	}
	if options.RetriesMax == 0 {
		options.RetriesMax = 2
	}
	client := options.HTTPClient
	if client == nil {
		client = &http.Client{Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		}}
	}
	return &Client{urls: trimmed, options: options, http: client, next: rand.Intn(len(urls)), tokens: tokensMax}, nil
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// PredictRows scores rows of named features, such as {"I1": 5, "C1": "68fd1e64"}; a feature left out is missing.
func (c *Client) PredictRows(ctx context.Context, rows []map[string]any, options CallOptions) (*Prediction, error) {
	body, err := json.Marshal(map[string]any{"rows": rows})
	if err != nil {
		return nil, &Error{Code: "INVALID_ARGUMENT", Message: err.Error()}
	}
	return c.predict(ctx, body, "application/json", options)
}

// PredictTSV scores lines of tab-separated values in the order of the model's features.
func (c *Client) PredictTSV(ctx context.Context, lines string, options CallOptions) (*Prediction, error) {
	return c.predict(ctx, []byte(lines), "text/tab-separated-values", options)
}

// Columns of named features; values of a dense feature may be NaN (missing), those of a slot "".
type Columns struct {
	Categorical map[string][]string
	Dense       map[string][]float64
}

type tensor struct {
	Name       string         `json:"name"`
	Datatype   string         `json:"datatype"`
	Shape      []int          `json:"shape"`
	Data       any            `json:"data,omitempty"`
	Parameters map[string]any `json:"parameters,omitempty"`
}

// PredictColumns scores columns of named features.
func (c *Client) PredictColumns(ctx context.Context, columns Columns, options CallOptions) (*Prediction, error) {
	var inputs []tensor
	for name, values := range columns.Categorical {
		inputs = append(inputs, tensor{Name: name, Datatype: "BYTES", Shape: []int{len(values)}, Data: values})
	}
	for name, values := range columns.Dense {
		data := make([]*float64, len(values))
		for i := range values {
			if !math.IsNaN(values[i]) {
				data[i] = &values[i]
			}
		}
		inputs = append(inputs, tensor{Name: name, Datatype: "FP64", Shape: []int{len(values)}, Data: data})
	}
	body, err := json.Marshal(inferRequest(inputs, options))
	if err != nil {
		return nil, &Error{Code: "INVALID_ARGUMENT", Message: err.Error()}
	}
	return c.infer(ctx, body, 0, options)
}

// PredictArrays scores binary tensors: keys [rows, slots] and dense [rows, dense features] (not scaled; NaN: missing).
func (c *Client) PredictArrays(
	ctx context.Context, keys [][]uint64, dense [][]float32, options CallOptions,
) (*Prediction, error) {
	features, err := c.Features(ctx)
	if err != nil {
		return nil, err
	}
	slots := len(features.Slots)
	keyBytes := make([]byte, 0, len(keys)*slots*8)
	for i, row := range keys {
		if len(row) != slots {
			return nil, wrongWidth("keys", i, slots, len(row))
		}
		for _, key := range row {
			keyBytes = binary.LittleEndian.AppendUint64(keyBytes, key)
		}
	}
	inputs := []tensor{binaryTensor("keys", "UINT64", len(keys), slots, len(keyBytes))}
	var denseBytes []byte
	if features.Dense != nil {
		width := len(features.Dense.Features)
		for i, row := range dense {
			if len(row) != width {
				return nil, wrongWidth("dense", i, width, len(row))
			}
			for _, value := range row {
				denseBytes = binary.LittleEndian.AppendUint32(denseBytes, math.Float32bits(value))
			}
		}
		inputs = append(inputs, binaryTensor("dense", "FP32", len(dense), width, len(denseBytes)))
	}
	head, err := json.Marshal(inferRequest(inputs, options))
	if err != nil {
		return nil, &Error{Code: "INVALID_ARGUMENT", Message: err.Error()}
	}
	body := append(append(head, keyBytes...), denseBytes...)
	return c.infer(ctx, body, len(head), options)
}

// Features returns slots, dense features and hashing of the model; they are asked for once.
func (c *Client) Features(ctx context.Context) (*Features, error) {
	c.mutex.Lock()
	known := c.features
	c.mutex.Unlock()
	if known != nil {
		return known, nil
	}
	model, err := c.modelName(ctx)
	if err != nil {
		return nil, err
	}
	var features *Features
	path := "/v1/models/" + url.PathEscape(model) + "/features"
	read := func(content []byte, _ http.Header) error {
		features = &Features{}
		if err := json.Unmarshal(content, features); err != nil {
			return err
		}
		return features.check()
	}
	if err := c.call(ctx, http.MethodGet, path, nil, http.Header{}, CallOptions{}, read); err != nil {
		return nil, err
	}
	c.mutex.Lock()
	c.features = features
	c.mutex.Unlock()
	return features, nil
}

// HashRow returns the keys of a row: one value per slot, "" for a missing one.
func (c *Client) HashRow(ctx context.Context, features []string) ([]uint64, error) {
	known, err := c.Features(ctx)
	if err != nil {
		return nil, err
	}
	return known.HashRow(features)
}

func (c *Client) modelName(ctx context.Context) (string, error) {
	c.mutex.Lock()
	model := c.options.Model
	c.mutex.Unlock()
	if model != "" {
		return model, nil
	}
	var names []string
	read := func(content []byte, _ http.Header) error {
		var answer struct {
			Models []string `json:"models"`
		}
		if err := json.Unmarshal(content, &answer); err != nil {
			return err
		}
		if names = answer.Models; names == nil || (len(names) == 1 && names[0] == "") {
			return errors.New("it has no names of models")
		}
		return nil
	}
	if err := c.call(ctx, http.MethodGet, "/v2/models", nil, http.Header{}, CallOptions{}, read); err != nil {
		return "", err
	}
	if len(names) != 1 {
		message := fmt.Sprintf("the server has %d models: name one", len(names))
		return "", &Error{Code: "INVALID_ARGUMENT", Message: message}
	}
	c.mutex.Lock()
	c.options.Model = names[0]
	c.mutex.Unlock()
	return names[0], nil
}

func (c *Client) predict(
	ctx context.Context, body []byte, contentType string, options CallOptions,
) (*Prediction, error) {
	query := url.Values{}
	c.mutex.Lock()
	chosen := map[string]string{"model": c.options.Model, "version": c.options.Version, "label": c.options.Label}
	c.mutex.Unlock()
	for name, value := range chosen {
		if value != "" {
			query.Set(name, value)
		}
	}
	if options.Priority != nil {
		query.Set("priority", strconv.Itoa(*options.Priority))
	}
	path := "/v1/ctr:predict"
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	var prediction *Prediction
	read := func(content []byte, answered http.Header) error {
		var answer struct {
			Model         *string    `json:"model"`
			Version       *string    `json:"version"`
			Probabilities []*float64 `json:"probabilities"`
			counts
		}
		if err := json.Unmarshal(content, &answer); err != nil {
			return err
		}
		var err error
		prediction, err = toPrediction(answer.Probabilities, answer.Model, answer.Version, answer.counts, answered)
		return err
	}
	header := http.Header{"Content-Type": {contentType}}
	err := c.call(ctx, http.MethodPost, path, body, header, options, read)
	return prediction, err
}

// counts of an answer; pointers tell missing fields from zeros.
type counts struct {
	TablesVersion *string `json:"tables_version"`
	Unseen        *int    `json:"unseen"`
	Unavailable   *int    `json:"unavailable"`
	Degraded      *bool   `json:"degraded"`
}

// toPrediction returns an error where a field is missing.
func toPrediction(
	probabilities []*float64, model, version *string, counts counts, answered http.Header,
) (*Prediction, error) {
	isComplete := probabilities != nil && model != nil && version != nil && counts.TablesVersion != nil &&
		counts.Unseen != nil && counts.Unavailable != nil && counts.Degraded != nil
	values := make([]float64, len(probabilities))
	for i, value := range probabilities {
		if value == nil {
			isComplete = false
			break
		}
		values[i] = *value
	}
	if !isComplete {
		return nil, errors.New("a field of a prediction is missing")
	}
	return &Prediction{
		Probabilities: values, Model: *model, Version: *version, TablesVersion: *counts.TablesVersion,
		Unseen: *counts.Unseen, Unavailable: *counts.Unavailable, Degraded: *counts.Degraded,
		Experiments: readExperiments(answered),
	}, nil
}

func (c *Client) infer(ctx context.Context, body []byte, headBytes int, options CallOptions) (*Prediction, error) {
	if c.options.Label != "" {
		return nil, &Error{Code: "INVALID_ARGUMENT", Message: "label: only PredictRows and PredictTSV take one"}
	}
	features, err := c.Features(ctx)
	if err != nil {
		return nil, err
	}
	model, err := c.modelName(ctx)
	if err != nil {
		return nil, err
	}
	path := "/v2/models/" + url.PathEscape(model)
	if c.options.Version != "" {
		path += "/versions/" + url.PathEscape(c.options.Version)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if headBytes > 0 {
		header = http.Header{
			"Content-Type":                    {"application/octet-stream"},
			"Inference-Header-Content-Length": {strconv.Itoa(headBytes)},
		}
	}
	var prediction *Prediction
	read := func(content []byte, answered http.Header) error {
		var answer struct {
			Model      *string  `json:"model_name"`
			Version    *string  `json:"model_version"`
			Parameters counts   `json:"parameters"`
			Outputs    []output `json:"outputs"`
		}
		if err := json.Unmarshal(content, &answer); err != nil {
			return err
		}
		probabilities, err := findClicks(answer.Outputs, features)
		if err != nil {
			return err
		}
		prediction, err = toPrediction(probabilities, answer.Model, answer.Version, answer.Parameters, answered)
		return err
	}
	err = c.call(ctx, http.MethodPost, path+"/infer", body, header, options, read)
	return prediction, err
}

type output struct {
	Name  string     `json:"name"`
	Shape []int      `json:"shape"`
	Data  []*float64 `json:"data"`
}

// findClicks returns the column of the click output.
func findClicks(outputs []output, features *Features) ([]*float64, error) {
	for _, output := range outputs {
		if output.Name != features.Click.Output {
			continue
		}
		if len(output.Shape) == 0 || output.Shape[0] < 0 {
			return nil, errors.New("an output has no shape")
		}
		rows, column := output.Shape[0], features.Click.Column
		clicks := make([]*float64, 0, len(output.Data))
		if rows == 0 {
			return clicks, nil
		}
		width := len(output.Data) / rows
		if column < 0 || column >= width || width*rows != len(output.Data) {
			return nil, fmt.Errorf("it has %d values for shape %v", len(output.Data), output.Shape)
		}
		for at := column; at < len(output.Data); at += width {
			clicks = append(clicks, output.Data[at])
		}
		return clicks, nil
	}
	return nil, fmt.Errorf("it has no output %q", features.Click.Output)
}

// call sends a request until there is an answer that a retry would not change. read takes content and header of an
// answer with status 200; its error means that the answer is unusable.
func (c *Client) call(
	ctx context.Context, method, path string, body []byte, header http.Header, options CallOptions,
	read func([]byte, http.Header) error,
) error {
	if hasControl(options.ExperimentKey) || hasControl(c.options.APIKey) {
		return &Error{Code: "INVALID_ARGUMENT", Message: "a key for a header has a control character"}
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	if options.ExperimentKey != "" {
		header.Set("x-experiment-key", options.ExperimentKey)
	}
	if c.options.APIKey != "" {
		header.Set("Authorization", "Bearer "+c.options.APIKey)
	}
	if c.options.Compress {
		header.Set("Accept-Encoding", "gzip")
		if len(body) >= compressBytesMin {
			body = compress(body)
			header.Set("Content-Encoding", "gzip")
		}
	}
	c.mutex.Lock()
	c.tokens = math.Min(tokensMax, c.tokens+tokensPerCall)
	first := c.next
	c.next = (c.next + 1) % len(c.urls)
	c.mutex.Unlock()
	for tries := 0; ; {
		remaining := time.Until(deadline)
		if remaining < time.Millisecond {
			return deadlineExceeded(ctx)
		}
		if remaining > timeoutMax {
			remaining = timeoutMax
		}
		header.Set("timeout-ms", strconv.FormatInt(remaining.Milliseconds(), 10))
		address := c.urls[(first+tries)%len(c.urls)]
		status, answered, content, err := c.send(ctx, method, address+path, body, header)
		var failure *Error
		var pause time.Duration
		switch {
		case err != nil && ctx.Err() != nil:
			return deadlineExceeded(ctx)
		case err != nil:
			failure = &Error{Code: "UNAVAILABLE", Message: err.Error()}
		case status == http.StatusOK:
			if err := read(content, answered); err != nil {
				failure = &Error{Code: "UNAVAILABLE", Message: "the answer is unusable: " + err.Error()}
				break
			}
			return nil
		default:
			failure = readError(status, content)
			if status == http.StatusTooManyRequests {
				pause = readPause(answered.Get("Retry-After"))
			}
		}
		if failure.Status != 0 && failure.Status != 429 && failure.Status != 502 && failure.Status != 503 {
			return failure
		}
		backoff := backoffFirst << tries
		if backoff > backoffMax || backoff <= 0 {
			backoff = backoffMax
		}
		if random := time.Duration(rand.Int63n(int64(backoff))); random > pause {
			pause = random
		}
		tries++
		if tries > c.options.RetriesMax || time.Until(deadline) <= pause || !c.takeToken() {
			return failure
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return deadlineExceeded(ctx)
		}
	}
}

func (c *Client) takeToken() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.tokens < 1 {
		return false
	}
	c.tokens--
	return true
}

func (c *Client) send(
	ctx context.Context, method, address string, body []byte, header http.Header,
) (int, http.Header, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	request.Header = header.Clone()
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax+1))
	if err != nil {
		return 0, nil, nil, err
	}
	if response.Header.Get("Content-Encoding") == "gzip" {
		reader, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			return 0, nil, nil, err
		}
		if content, err = io.ReadAll(io.LimitReader(reader, answerBytesMax+1)); err != nil {
			return 0, nil, nil, err
		}
	}
	if len(content) > answerBytesMax {
		return 0, nil, nil, fmt.Errorf("the answer is larger than %d bytes", answerBytesMax)
	}
	return response.StatusCode, response.Header, content, nil
}

func compress(body []byte) []byte {
	var out bytes.Buffer
	writer, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	_, _ = writer.Write(body)
	_ = writer.Close()
	return out.Bytes()
}

func deadlineExceeded(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return &Error{Code: "DEADLINE_EXCEEDED", Message: "no answer before the deadline"}
}

// Codes for answers without a code of their own, such as those of a proxy.
var codeByStatus = map[int]string{
	400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 405: "UNSUPPORTED",
	413: "TOO_LARGE", 429: "OVERLOADED", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}

func readError(status int, content []byte) *Error {
	code := codeByStatus[status]
	if code == "" {
		code = "INTERNAL"
	}
	var answer struct {
		Code  string `json:"code"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(content, &answer); err != nil || answer.Error == "" {
		return &Error{Code: code, Message: fmt.Sprintf("HTTP status %d", status), Status: status}
	}
	if answer.Code != "" {
		code = answer.Code
	}
	return &Error{Code: code, Message: answer.Error, Status: status}
}

// readPause returns the pause of a Retry-After header, which is a number of seconds or a date; 0 for other text.
func readPause(text string) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(text); err == nil {
		return time.Until(date)
	}
	return 0
}

func hasControl(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r < 0x20 || r == 0x7f }) >= 0
}

func readExperiments(header http.Header) map[string]string {
	experiments := map[string]string{}
	for _, pair := range strings.Split(header.Get("hypercube-experiments"), ",") {
		if name, variant, found := strings.Cut(pair, "="); found {
			experiments[strings.TrimSpace(name)] = strings.TrimSpace(variant)
		}
	}
	return experiments
}

func inferRequest(inputs []tensor, options CallOptions) map[string]any {
	request := map[string]any{"inputs": inputs}
	if options.Priority != nil {
		// KServe counts priorities from 1.
		request["parameters"] = map[string]any{"priority": *options.Priority + 1}
	}
	return request
}

func binaryTensor(name, datatype string, rows, width, bytes int) tensor {
	parameters := map[string]any{"binary_data_size": bytes}
	return tensor{Name: name, Datatype: datatype, Shape: []int{rows, width}, Parameters: parameters}
}

func wrongWidth(name string, row, expected, got int) error {
	message := fmt.Sprintf("%s, row %d: expected %d values, got %d", name, row, expected, got)
	return &Error{Code: "INVALID_ARGUMENT", Message: message}
}
