package hypercube;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Flow;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.zip.GZIPInputStream;
import java.util.zip.GZIPOutputStream;

/**
 * A client of one serving process, or of several that serve the same models. Safe for use by several threads.
 *
 * <p>A call tries the next address when there is no usable answer (status 429, 502, 503, or a broken connection),
 * within its timeout and a budget of a tenth of the calls.
 */
public final class Client {
  /** A retry costs one token; a call earns a tenth of one, so that retries stay below a tenth of the calls. */
  private static final double TOKENS_PER_CALL = 0.1;

  private static final double TOKENS_MAX = 10;
  private static final long BACKOFF_FIRST_MS = 10;
  private static final long BACKOFF_MAX_MS = 1000;
  private static final int COMPRESS_BYTES_MIN = 1024;
  private static final int ANSWER_BYTES_MAX = 256 << 20;
  private static final long TIMEOUT_MS_MAX = 600_000;

  private final List<String> urls;
  private final Options options;
  private final HttpClient http;
  private String model;
  private int next;
  private double tokens = TOKENS_MAX;
  private volatile Features features;

  /** Settings of a client; change the fields before it is made. */
  public static final class Options {
    /** Name of the model; "" for the only one of the process. */
    public String model = "";
    /** Version to use; "" for the active one. */
    public String version = "";
    /** Name of the channel that chooses the version; only for rows and TSV. */
    public String label = "";
    /** Time for a call with its retries. */
    public long timeoutMs = 1000;
    /** Repeated tries of a call at most. */
    public int retriesMax = 2;
    /** Sends large bodies with gzip, and accepts answers with it. */
    public boolean compress;
    public String apiKey = "";
    /** For TLS, proxies and executors of your own; HTTP/1.1 is used. */
    public HttpClient.Builder http = HttpClient.newBuilder();
  }

  /** Settings of one call. */
  public static final class CallOptions {
    public String experimentKey = "";
    /** 0 is the highest; -1: the server's default. */
    public int priority = -1;
  }

  /** Reads an answer with status 200. */
  private interface Reader<T> {
    /** @throws IllegalArgumentException if the answer is unusable */
    T read(Map<?, ?> content, HttpHeaders headers);
  }

  /** @param urls base addresses, such as {@code http://10.0.0.1:8080} */
  public Client(List<String> urls, Options options) {
    if (urls.isEmpty()) throw new IllegalArgumentException("give at least one address");
    if (!options.version.isEmpty() && !options.label.isEmpty()) {
      throw new IllegalArgumentException("give a version or a label, not both");
    }
    this.urls = new ArrayList<>();
    for (String url : urls) {
      if (!url.matches("https?://[^/].*")) {
        throw new IllegalArgumentException("address " + url + ": expected http://host:port or https://host:port");
      }
      this.urls.add(url.replaceAll("/+$", ""));
    }
    this.options = options;
    this.model = options.model;
    this.next = ThreadLocalRandom.current().nextInt(urls.size());
    this.http = options.http.version(HttpClient.Version.HTTP_1_1).build();
  }

  /** Scores rows of named features, such as {"I1": 5, "C1": "68fd1e64"}; a feature left out is missing. */
  public Prediction predictRows(List<? extends Map<String, ?>> rows, CallOptions call)
      throws HypercubeException, InterruptedException {
    return predict(Json.write(Map.of("rows", rows)), "application/json", call);
  }

  /** Scores lines of tab-separated values in the order of the model's features. */
  public Prediction predictTsv(String lines, CallOptions call) throws HypercubeException, InterruptedException {
    return predict(lines, "text/tab-separated-values", call);
  }

  /** Scores columns of named features: strings for slots, numbers for dense features; null is missing. */
  public Prediction predictColumns(Map<String, ? extends List<?>> columns, CallOptions call)
      throws HypercubeException, InterruptedException {
    Features known = features();
    List<Object> inputs = new ArrayList<>();
    columns.forEach(
        (name, values) -> {
          Map<String, Object> input = new LinkedHashMap<>();
          input.put("name", name);
          input.put("datatype", known.slots.contains(name) ? "BYTES" : "FP64");
          input.put("shape", List.of(values.size()));
          input.put("data", values);
          inputs.add(input);
        });
    byte[] body = Json.write(inferRequest(inputs, call)).getBytes(StandardCharsets.UTF_8);
    return infer(body, 0, known, call);
  }

  /**
   * Scores binary tensors.
   *
   * @param keys [rows][slots], unsigned
   * @param dense [rows][dense features], not scaled; NaN is missing
   */
  public Prediction predictArrays(long[][] keys, float[][] dense, CallOptions call)
      throws HypercubeException, InterruptedException {
    Features known = features();
    int slots = known.slots.size();
    int width = known.dense.size();
    int denseRows = width == 0 ? 0 : dense.length;
    ByteBuffer data = ByteBuffer.allocate(keys.length * slots * 8 + denseRows * width * 4);
    data.order(ByteOrder.LITTLE_ENDIAN);
    for (int i = 0; i < keys.length; i++) {
      if (keys[i].length != slots) throw wrongWidth("keys", i, slots, keys[i].length);
      for (long key : keys[i]) data.putLong(key);
    }
    List<Object> inputs = new ArrayList<>();
    inputs.add(binaryTensor("keys", "UINT64", keys.length, slots, 8));
    if (width > 0) {
      for (int i = 0; i < dense.length; i++) {
        if (dense[i].length != width) throw wrongWidth("dense", i, width, dense[i].length);
        for (float value : dense[i]) data.putFloat(value);
      }
      inputs.add(binaryTensor("dense", "FP32", dense.length, width, 4));
    }
    byte[] head = Json.write(inferRequest(inputs, call)).getBytes(StandardCharsets.UTF_8);
    byte[] body = ByteBuffer.allocate(head.length + data.capacity()).put(head).put(data.array()).array();
    return infer(body, head.length, known, call);
  }

  /** Slots, dense features and hashing of the model; asked for once. */
  public Features features() throws HypercubeException, InterruptedException {
    Features known = features;
    if (known == null) {
      String path = "/v1/models/" + escape(modelName()) + "/features";
      known = call("GET", path, new byte[0], Map.of(), new CallOptions(), (content, headers) -> new Features(content));
      features = known;
    }
    return known;
  }

  private synchronized String knownModel() {
    return model;
  }

  private String modelName() throws HypercubeException, InterruptedException {
    String known = knownModel();
    if (!known.isEmpty()) return known;
    List<String> names =
        call("GET", "/v2/models", new byte[0], Map.of(), new CallOptions(), (content, headers) -> readNames(content));
    if (names.size() != 1) {
      throw new HypercubeException("INVALID_ARGUMENT", "the server has " + names.size() + " models: name one", 0);
    }
    synchronized (this) {
      model = names.get(0);
      return model;
    }
  }

  private static List<String> readNames(Map<?, ?> content) {
    List<String> names = new ArrayList<>();
    for (Object name : Json.field(content, "models", List.class)) names.add(Json.cast(name, String.class));
    return names;
  }

  private Prediction predict(String text, String contentType, CallOptions call)
      throws HypercubeException, InterruptedException {
    StringBuilder query = new StringBuilder();
    addParameter(query, "model", knownModel());
    addParameter(query, "version", options.version);
    addParameter(query, "label", options.label);
    addParameter(query, "priority", call.priority < 0 ? "" : Integer.toString(call.priority));
    byte[] body = text.getBytes(StandardCharsets.UTF_8);
    Map<String, String> headers = Map.of("Content-Type", contentType);
    return call("POST", "/v1/ctr:predict" + query, body, headers, call, Client::readPrediction);
  }

  private static Prediction readPrediction(Map<?, ?> content, HttpHeaders headers) {
    double[] probabilities = toDoubles(Json.field(content, "probabilities", List.class), 0, 1);
    String model = Json.field(content, "model", String.class);
    String version = Json.field(content, "version", String.class);
    return new Prediction(probabilities, model, version, content, readExperiments(headers));
  }

  private static void addParameter(StringBuilder query, String name, String value) {
    if (!value.isEmpty()) query.append(query.length() == 0 ? '?' : '&').append(name).append('=').append(escape(value));
  }

  private Prediction infer(byte[] body, int headBytes, Features known, CallOptions call)
      throws HypercubeException, InterruptedException {
    if (!options.label.isEmpty()) {
      throw new HypercubeException("INVALID_ARGUMENT", "label: only predictRows and predictTsv take one", 0);
    }
    String version = options.version.isEmpty() ? "" : "/versions/" + escape(options.version);
    Map<String, String> headers =
        headBytes == 0
            ? Map.of("Content-Type", "application/json")
            : Map.of(
                "Content-Type", "application/octet-stream",
                "Inference-Header-Content-Length", Integer.toString(headBytes));
    String path = "/v2/models/" + escape(modelName()) + version + "/infer";
    return call("POST", path, body, headers, call, (content, answered) -> readInference(content, answered, known));
  }

  private static Prediction readInference(Map<?, ?> content, HttpHeaders headers, Features known) {
    return new Prediction(
        findClicks(Json.field(content, "outputs", List.class), known),
        Json.field(content, "model_name", String.class),
        Json.field(content, "model_version", String.class),
        Json.field(content, "parameters", Map.class),
        readExperiments(headers));
  }

  /** The column of the click output. */
  private static double[] findClicks(List<?> outputs, Features known) {
    for (Object element : outputs) {
      Map<?, ?> output = Json.cast(element, Map.class);
      if (!known.clickOutput().equals(output.get("name"))) continue;
      List<?> data = Json.field(output, "data", List.class);
      List<?> shape = Json.field(output, "shape", List.class);
      int rows = shape.isEmpty() ? -1 : Json.cast(shape.get(0), Number.class).intValue();
      if (rows == 0) return new double[0];
      int width = rows < 0 ? 0 : data.size() / rows;
      if (known.clickColumn() < 0 || known.clickColumn() >= width || width * rows != data.size()) {
        throw new IllegalArgumentException("the answer has " + data.size() + " values for " + rows + " rows");
      }
      return toDoubles(data, known.clickColumn(), width);
    }
    throw new IllegalArgumentException("the answer has no output " + known.clickOutput());
  }

  /** Sends a request until there is an answer that a retry would not change. */
  private <T> T call(
      String method, String path, byte[] content, Map<String, String> headers, CallOptions call, Reader<T> reader)
      throws HypercubeException, InterruptedException {
    long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(options.timeoutMs);
    HttpRequest.Builder request = HttpRequest.newBuilder();
    headers.forEach(request::setHeader);
    if (!call.experimentKey.isEmpty()) {
      request.setHeader("x-experiment-key", requireAscii("experimentKey", call.experimentKey));
    }
    if (!options.apiKey.isEmpty()) {
      request.setHeader("Authorization", "Bearer " + requireAscii("apiKey", options.apiKey));
    }
    byte[] body = content;
    if (options.compress) {
      request.setHeader("Accept-Encoding", "gzip");
      if (body.length >= COMPRESS_BYTES_MIN) {
        body = compress(body);
        request.setHeader("Content-Encoding", "gzip");
      }
    }
    request.method(
        method,
        body.length == 0 ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofByteArray(body));
    int first = startCall();
    for (int tries = 0; ; ) {
      long remainingMs = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
      if (remainingMs < 1) throw deadlineExceeded();
      request.uri(URI.create(urls.get((first + tries) % urls.size()) + path));
      request.setHeader("timeout-ms", Long.toString(Math.min(remainingMs, TIMEOUT_MS_MAX)));
      request.timeout(Duration.ofMillis(remainingMs));
      HypercubeException error;
      long pauseMs = 0;
      try {
        HttpResponse<byte[]> response = send(request.build(), remainingMs);
        String text = new String(readBody(response), StandardCharsets.UTF_8);
        if (response.statusCode() == 200) {
          return reader.read(Json.cast(Json.parse(text), Map.class), response.headers());
        }
        error = readError(response.statusCode(), text);
        if (response.statusCode() == 429) {
          pauseMs = readPauseMs(response.headers().firstValue("Retry-After").orElse(""));
        }
      } catch (HttpTimeoutException | TimeoutException timeout) {
        throw deadlineExceeded();
      } catch (IOException | IllegalArgumentException problem) {
        error = new HypercubeException("UNAVAILABLE", problem.toString(), 0);
      }
      int status = error.status();
      if (status != 0 && status != 429 && status != 502 && status != 503) throw error;
      long backoffMs = Math.min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS << Math.min(tries, 10));
      pauseMs = Math.max(pauseMs, ThreadLocalRandom.current().nextLong(backoffMs));
      tries++;
      boolean isTooLate = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(pauseMs) >= deadline;
      if (tries > options.retriesMax || isTooLate || !takeToken()) throw error;
      Thread.sleep(pauseMs);
    }
  }

  /** Waits for head and body: the timeout of a request ends with the head of its answer. */
  private HttpResponse<byte[]> send(HttpRequest request, long timeoutMs)
      throws IOException, TimeoutException, InterruptedException {
    CompletableFuture<HttpResponse<byte[]>> answer =
        http.sendAsync(request, info -> new LimitedBody());
    try {
      return answer.get(timeoutMs, TimeUnit.MILLISECONDS);
    } catch (ExecutionException error) {
      if (error.getCause() instanceof IOException) throw (IOException) error.getCause();
      throw new IOException(error.getCause());
    } finally {
      answer.cancel(true);
    }
  }

  /** Reads a body of at most ANSWER_BYTES_MAX bytes. */
  private static final class LimitedBody implements HttpResponse.BodySubscriber<byte[]> {
    private final HttpResponse.BodySubscriber<byte[]> content = HttpResponse.BodySubscribers.ofByteArray();
    private Flow.Subscription subscription;
    private long left = ANSWER_BYTES_MAX;

    @Override
    public CompletionStage<byte[]> getBody() {
      return content.getBody();
    }

    @Override
    public void onSubscribe(Flow.Subscription given) {
      subscription = given;
      content.onSubscribe(given);
    }

    @Override
    public void onNext(List<ByteBuffer> pieces) {
      for (ByteBuffer piece : pieces) left -= piece.remaining();
      if (left >= 0) {
        content.onNext(pieces);
        return;
      }
      subscription.cancel();
      content.onError(tooLarge());
    }

    @Override
    public void onError(Throwable error) {
      content.onError(error);
    }

    @Override
    public void onComplete() {
      content.onComplete();
    }
  }

  private static IOException tooLarge() {
    return new IOException("the answer is larger than " + ANSWER_BYTES_MAX + " bytes");
  }

  private synchronized int startCall() {
    tokens = Math.min(TOKENS_MAX, tokens + TOKENS_PER_CALL);
    int first = next;
    next = (next + 1) % urls.size();
    return first;
  }

  private synchronized boolean takeToken() {
    if (tokens < 1) return false;
    tokens--;
    return true;
  }

  private HypercubeException deadlineExceeded() {
    return new HypercubeException("DEADLINE_EXCEEDED", "no answer within " + options.timeoutMs + " ms", 0);
  }

  private static byte[] readBody(HttpResponse<byte[]> response) throws IOException {
    if (!"gzip".equals(response.headers().firstValue("Content-Encoding").orElse(""))) return response.body();
    try (GZIPInputStream in = new GZIPInputStream(new ByteArrayInputStream(response.body()))) {
      byte[] content = in.readNBytes(ANSWER_BYTES_MAX);
      if (in.read() >= 0) throw tooLarge();
      return content;
    }
  }

  private static byte[] compress(byte[] body) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    try (GZIPOutputStream gzip = new GZIPOutputStream(out)) {
      gzip.write(body);
    } catch (IOException error) {
      throw new IllegalStateException(error); // memory does not fail
    }
    return out.toByteArray();
  }

  private static HypercubeException readError(int status, String text) {
    try {
      Map<?, ?> content = Json.cast(Json.parse(text), Map.class);
      String message = Json.field(content, "error", String.class);
      boolean hasCode = content.containsKey("code");
      String code = hasCode ? Json.field(content, "code", String.class) : HypercubeException.codeOfStatus(status);
      return new HypercubeException(code, message, status);
    } catch (IllegalArgumentException error) {
      // Not an answer of serving: the status says what is known.
    }
    return new HypercubeException(HypercubeException.codeOfStatus(status), "HTTP status " + status, status);
  }

  /** The pause of a Retry-After header, which is a number of seconds or a date; 0 for other text. */
  private static long readPauseMs(String text) {
    if (text.matches("[0-9]{1,12}")) return Long.parseLong(text) * 1000;
    try {
      Instant date = ZonedDateTime.parse(text, DateTimeFormatter.RFC_1123_DATE_TIME).toInstant();
      return Duration.between(Instant.now(), date).toMillis();
    } catch (DateTimeException error) {
      return 0;
    }
  }

  private static Map<String, String> readExperiments(HttpHeaders headers) {
    Map<String, String> experiments = new LinkedHashMap<>();
    for (String pair : headers.firstValue("hypercube-experiments").orElse("").split(",")) {
      int equals = pair.indexOf('=');
      if (equals > 0) experiments.put(pair.substring(0, equals).trim(), pair.substring(equals + 1).trim());
    }
    return experiments;
  }

  private static double[] toDoubles(List<?> data, int start, int step) {
    double[] values = new double[(data.size() - start + step - 1) / step];
    for (int i = 0; i < values.length; i++) {
      values[i] = Json.cast(data.get(start + i * step), Number.class).doubleValue();
    }
    return values;
  }

  private static Map<String, Object> inferRequest(List<Object> inputs, CallOptions call) {
    Map<String, Object> request = new LinkedHashMap<>();
    request.put("inputs", inputs);
    // KServe counts priorities from 1.
    if (call.priority >= 0) request.put("parameters", Map.of("priority", call.priority + 1));
    return request;
  }

  private static Map<String, Object> binaryTensor(String name, String datatype, int rows, int width, int bytes) {
    return Map.of(
        "name", name, "datatype", datatype, "shape", List.of(rows, width),
        "parameters", Map.of("binary_data_size", rows * width * bytes));
  }

  /** Java's HTTP client refuses other characters, or sends question marks. */
  private static String requireAscii(String name, String key) throws HypercubeException {
    if (key.chars().allMatch(unit -> unit >= 0x20 && unit < 0x7f)) return key;
    throw new HypercubeException("INVALID_ARGUMENT", name + ": Java's HTTP client sends printable ASCII only", 0);
  }

  private static HypercubeException wrongWidth(String name, int row, int expected, int got) {
    String message = name + ", row " + row + ": expected " + expected + " values, got " + got;
    return new HypercubeException("INVALID_ARGUMENT", message, 0);
  }

  private static String escape(String text) {
    return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
  }
}
