<?php
/**
 * Client of Hypercube serving in one file, with the curl extension: predictions over HTTP with one deadline per call,
 * retries with a budget, and the hashing of features into keys. For 64-bit PHP 8.1 or newer.
 */

declare(strict_types=1);

namespace Hypercube;

/**
 * A call that failed. `errorCode` is the server's error code, or UNAVAILABLE (no usable answer), DEADLINE_EXCEEDED (the
 * timeout passed) and INVALID_ARGUMENT (wrong arguments) where the client itself found the problem. `status` is the
 * HTTP status, 0 without an answer.
 */
final class HypercubeException extends \RuntimeException
{
    private const CODES = [
        400 => 'INVALID_ARGUMENT', 401 => 'UNAUTHENTICATED', 403 => 'PERMISSION_DENIED', 404 => 'NOT_FOUND',
        405 => 'UNSUPPORTED', 413 => 'TOO_LARGE', 429 => 'OVERLOADED', 502 => 'UNAVAILABLE', 503 => 'UNAVAILABLE',
        504 => 'DEADLINE_EXCEEDED',
    ];

    public function __construct(
        public readonly string $errorCode,
        string $message,
        public readonly int $status = 0,
    ) {
        parent::__construct("$errorCode: $message");
    }

    public static function fromAnswer(int $status, string $content): self
    {
        $answer = json_decode($content, true);
        $code = self::CODES[$status] ?? 'INTERNAL';
        if (!is_array($answer) || !is_string($answer['error'] ?? null) || !is_string($answer['code'] ?? '')) {
            return new self($code, "HTTP status $status", $status);
        }
        return new self($answer['code'] ?? $code, $answer['error'], $status);
    }
}

/** Click probabilities of one request, and the version of graph and tables that made them. */
final class Prediction
{
    /**
     * @param list<float> $probabilities
     * @param int $unseen lookups whose feature is not in the table
     * @param int $unavailable lookups that no replica answered; the default row was used
     * @param array<string, string> $experiments variant by experiment
     */
    public function __construct(
        public readonly array $probabilities,
        public readonly string $model,
        public readonly string $version,
        public readonly string $tablesVersion,
        public readonly int $unseen,
        public readonly int $unavailable,
        public readonly bool $degraded,
        public readonly array $experiments,
    ) {
    }
}

/** Keys of features: unsigned 64-bit integers, as decimal strings. */
final class Hashing
{
    /**
     * @param string $scheme xxh64-concat, xxh64-tagged or raw
     * @param string $seed decimal
     * @param string $modulo decimal, "0" for none
     */
    public static function key(int $slot, string $feature, string $scheme, string $seed, string $modulo): string
    {
        $key = match ($scheme) {
            'xxh64-concat' => self::xxh64($slot . $feature, $seed),
            'xxh64-tagged' => self::xxh64($slot . "\0" . $feature, $seed),
            'raw' => self::parse($feature),
            default => throw new \InvalidArgumentException(
                "unknown hash scheme $scheme: use xxh64-concat, xxh64-tagged or raw",
            ),
        };
        $divisor = self::parse($modulo);
        return self::format($divisor === 0 ? $key : self::remainder($key, $divisor));
    }

    /** The bits of an unsigned 64-bit decimal, as PHP's signed integer. */
    public static function parse(string $decimal): int
    {
        if (!preg_match('/^\d{1,20}$/', $decimal)) {
            throw new \InvalidArgumentException("expected an integer from 0 to 2^64 - 1, got \"$decimal\"");
        }
        // Ten times the value so far, plus a digit, in halves of 32 bits: PHP turns larger products into floats.
        $high = 0;
        $low = 0;
        foreach (str_split($decimal) as $digit) {
            $low = $low * 10 + (int) $digit;
            $high = $high * 10 + ($low >> 32);
            $low &= 0xFFFFFFFF;
            if ($high > 0xFFFFFFFF) {
                throw new \InvalidArgumentException("expected an integer from 0 to 2^64 - 1, got \"$decimal\"");
            }
        }
        return $high << 32 | $low;
    }

    public static function format(int $bits): string
    {
        return sprintf('%u', $bits);
    }

    private static function xxh64(string $data, string $seed): int
    {
        $bytes = hash('xxh64', $data, true, ['seed' => self::parse($seed)]);
        return unpack('J', $bytes)[1];
    }

    /** The unsigned remainder, bit by bit: PHP has signed integers only. */
    private static function remainder(int $value, int $divisor): int
    {
        if ($value >= 0 && $divisor > 0) {
            return $value % $divisor;
        }
        $rest = 0;
        for ($bit = 63; $bit >= 0; $bit--) {
            $isOver = $rest < 0; // the bit that the shift drops
            $rest = $rest << 1 | ($value >> $bit & 1);
            if ($isOver || ($rest ^ PHP_INT_MIN) >= ($divisor ^ PHP_INT_MIN)) {
                $rest = self::subtract($rest, $divisor);
            }
        }
        return $rest;
    }

    private static function subtract(int $a, int $b): int
    {
        $low = ($a & 0xFFFFFFFF) - ($b & 0xFFFFFFFF);
        $high = ($a >> 32 & 0xFFFFFFFF) - ($b >> 32 & 0xFFFFFFFF) - ($low < 0 ? 1 : 0);
        return ($high & 0xFFFFFFFF) << 32 | $low & 0xFFFFFFFF;
    }
}

/**
 * A client of one serving process, or of several that serve the same models.
 *
 * A call tries the next address when there is no usable answer (status 429, 502, 503, or a broken connection), within
 * its timeout and a budget of a tenth of the calls.
 */
final class Client
{
    /** A retry costs one token; a call earns a tenth of one, so that retries stay below a tenth of the calls. */
    private const TOKENS_PER_CALL = 0.1;
    private const TOKENS_MAX = 10.0;
    private const BACKOFF_FIRST_MS = 10;
    private const BACKOFF_MAX_MS = 1000;
    private const COMPRESS_BYTES_MIN = 1024;
    private const TIMEOUT_MS_MAX = 600_000;
    /** Far above the answer to the largest request, and below PHP's usual memory limit of 128 MiB. */
    private const ANSWER_BYTES_MAX = 32 << 20;

    /** @var list<string> */
    private readonly array $urls;
    private readonly \CurlHandle $curl;
    private int $next;
    private float $tokens = self::TOKENS_MAX;
    /** @var array<string, mixed>|null */
    private ?array $features = null;

    /**
     * @param string|list<string> $urls base addresses, such as http://10.0.0.1:8080
     * @param string $model name of the model; "" for the only one of the process
     * @param string $version version to use; "" for the active one
     * @param string $label name of the channel that chooses the version; only for rows and TSV
     * @param int $timeoutMs time for a call with its retries
     * @param int $retriesMax repeated tries of a call at most
     * @param bool $compress send large bodies with gzip, and accept answers with it
     * @param array<int, mixed> $curlOptions more options of curl, such as CURLOPT_CAINFO
     */
    public function __construct(
        string|array $urls = 'http://127.0.0.1:8080',
        private string $model = '',
        private readonly string $version = '',
        private readonly string $label = '',
        private readonly int $timeoutMs = 1000,
        private readonly int $retriesMax = 2,
        private readonly bool $compress = false,
        #[\SensitiveParameter] private readonly string $apiKey = '',
        private readonly array $curlOptions = [],
    ) {
        $this->urls = array_map(static fn (string $url) => rtrim($url, '/'), (array) $urls);
        if ($this->urls === []) {
            throw new \InvalidArgumentException('give at least one address');
        }
        foreach ($this->urls as $url) {
            if (!preg_match('~^https?://[^/]~', $url)) {
                throw new \InvalidArgumentException("address $url: expected http://host:port or https://host:port");
            }
        }
        if ($version !== '' && $label !== '') {
            throw new \InvalidArgumentException('give a version or a label, not both');
        }
        $this->next = random_int(0, count($this->urls) - 1);
        $this->curl = curl_init();
    }

    /**
     * Scores rows of named features, such as ['I1' => 5, 'C1' => '68fd1e64']; a feature left out is missing.
     *
     * @param list<array<string, mixed>> $rows
     */
    public function predictRows(array $rows, string $experimentKey = '', ?int $priority = null): Prediction
    {
        $objects = array_map(static fn (array $row) => (object) $row, $rows);
        return $this->predict(self::encode(['rows' => $objects]), 'application/json', $experimentKey, $priority);
    }

    /** Scores lines of tab-separated values in the order of the model's features. */
    public function predictTsv(string $lines, string $experimentKey = '', ?int $priority = null): Prediction
    {
        return $this->predict($lines, 'text/tab-separated-values', $experimentKey, $priority);
    }

    /**
     * Scores columns of named features: strings for slots, numbers for dense features; null is missing.
     *
     * @param array<string, list<string|float|int|null>> $columns
     */
    public function predictColumns(array $columns, string $experimentKey = '', ?int $priority = null): Prediction
    {
        $slots = array_column($this->features()['slots'], 'name');
        $inputs = [];
        foreach ($columns as $name => $values) {
            $datatype = in_array((string) $name, $slots, true) ? 'BYTES' : 'FP64';
            $inputs[] = [
                'name' => (string) $name, 'datatype' => $datatype, 'shape' => [count($values)], 'data' => $values,
            ];
        }
        $body = self::encode(self::inferRequest($inputs, $priority));
        return $this->infer($body, ['Content-Type: application/json'], $experimentKey);
    }

    /**
     * Scores binary tensors.
     *
     * @param list<list<string>> $keys [rows][slots], decimals
     * @param list<list<float|int|null>> $dense [rows][dense features], not scaled; null is missing
     */
    public function predictArrays(
        array $keys,
        array $dense,
        string $experimentKey = '',
        ?int $priority = null,
    ): Prediction {
        $features = $this->features();
        $toKeyBytes = static fn (array $row) => pack('P*', ...array_map(Hashing::parse(...), $row));
        $toFloatBytes = static fn (array $row) => pack('g*', ...array_map(static fn ($v) => $v ?? NAN, $row));
        $data = self::join('keys', $keys, count($features['slots']), $toKeyBytes);
        $inputs = [self::binaryTensor('keys', 'UINT64', count($keys), count($features['slots']), strlen($data))];
        if (isset($features['dense'])) {
            $width = count($features['dense']['features']);
            $denseData = self::join('dense', $dense, $width, $toFloatBytes);
            $inputs[] = self::binaryTensor('dense', 'FP32', count($dense), $width, strlen($denseData));
            $data .= $denseData;
        }
        $head = self::encode(self::inferRequest($inputs, $priority));
        $headers = [
            'Content-Type: application/octet-stream',
            'Inference-Header-Content-Length: ' . strlen($head),
        ];
        return $this->infer($head . $data, $headers, $experimentKey);
    }

    /**
     * Slots, dense features and hashing of the model; asked for once.
     *
     * @return array<string, mixed>
     */
    public function features(): array
    {
        if ($this->features === null) {
            $path = '/v1/models/' . rawurlencode($this->modelName()) . '/features';
            $this->features = $this->call('GET', $path, '', [], '', self::readFeatures(...));
        }
        return $this->features;
    }

    /**
     * The keys of a row, as decimals.
     *
     * @param list<string|null> $features one value per slot; null or "" is missing
     * @return list<string>
     */
    public function hashRow(array $features): array
    {
        ['slots' => $slots, 'hash' => $hash] = $this->features();
        if (count($features) !== count($slots)) {
            $message = 'expected ' . count($slots) . ' features, one per slot, got ' . count($features);
            throw new \InvalidArgumentException($message);
        }
        $keys = [];
        foreach ($slots as $i => $slot) {
            if (isset($slot['pooling'])) {
                throw new \InvalidArgumentException("slot {$slot['name']} pools several values: it has no single key");
            }
            $feature = ($features[$i] ?? '') === '' ? $slot['missing'] ?? '' : $features[$i];
            $modulo = $slot['modulo'] ?? $hash['modulo'] ?? '0';
            $keys[] = Hashing::key($slot['index'], $feature, $hash['scheme'], $hash['seed'] ?? '0', $modulo);
        }
        return $keys;
    }

    private function modelName(): string
    {
        if ($this->model === '') {
            $read = static fn (array $answer) => self::listField($answer, 'models', is_string(...));
            $names = $this->call('GET', '/v2/models', '', [], '', $read);
            if (count($names) !== 1) {
                $message = 'the server has ' . count($names) . ' models: name one';
                throw new HypercubeException('INVALID_ARGUMENT', $message);
            }
            $this->model = $names[0];
        }
        return $this->model;
    }

    private function predict(string $body, string $type, string $experimentKey, ?int $priority): Prediction
    {
        $chosen = ['model' => $this->model, 'version' => $this->version, 'label' => $this->label];
        $query = array_filter($chosen, static fn (string $value) => $value !== '');
        if ($priority !== null) {
            $query['priority'] = (string) $priority;
        }
        $path = '/v1/ctr:predict' . ($query === [] ? '' : '?' . http_build_query($query));
        $read = static fn (array $answer, array $experiments) => self::toPrediction(
            self::listField($answer, 'probabilities', self::isNumber(...)),
            self::field($answer, 'model', is_string(...)),
            self::field($answer, 'version', is_string(...)),
            $answer,
            $experiments,
        );
        return $this->call('POST', $path, $body, ["Content-Type: $type"], $experimentKey, $read);
    }

    /** @param list<string> $headers */
    private function infer(string $body, array $headers, string $experimentKey): Prediction
    {
        if ($this->label !== '') {
            throw new HypercubeException('INVALID_ARGUMENT', 'label: only predictRows and predictTsv take one');
        }
        $click = $this->features()['click'];
        $version = $this->version === '' ? '' : '/versions/' . rawurlencode($this->version);
        $path = '/v2/models/' . rawurlencode($this->modelName()) . "$version/infer";
        $read = static fn (array $answer, array $experiments) => self::toPrediction(
            self::findClicks($answer, $click),
            self::field($answer, 'model_name', is_string(...)),
            self::field($answer, 'model_version', is_string(...)),
            self::field($answer, 'parameters', is_array(...)),
            $experiments,
        );
        return $this->call('POST', $path, $body, $headers, $experimentKey, $read);
    }

    /**
     * The column of the click output.
     *
     * @param array<string, mixed> $answer
     * @param array<string, mixed> $click
     * @return list<float|int>
     */
    private static function findClicks(array $answer, array $click): array
    {
        foreach (self::listField($answer, 'outputs', is_array(...)) as $output) {
            if (($output['name'] ?? null) !== $click['output']) {
                continue;
            }
            $data = self::listField($output, 'data', self::isNumber(...));
            $rows = self::listField($output, 'shape', is_int(...))[0] ?? -1;
            $column = $click['column'] ?? 0;
            if ($rows === 0) {
                return [];
            }
            $width = $rows < 0 ? 0 : intdiv(count($data), $rows);
            if ($column >= $width || $width * $rows !== count($data)) {
                throw new \UnexpectedValueException('the answer has ' . count($data) . " values for $rows rows");
            }
            return array_column(array_chunk($data, $width), $column);
        }
        throw new \UnexpectedValueException("the answer has no output {$click['output']}");
    }

    /**
     * @param array<string, mixed> $answer
     * @return array<string, mixed>
     */
    private static function readFeatures(array $answer): array
    {
        foreach (self::listField($answer, 'slots', is_array(...)) as $slot) {
            self::field($slot, 'name', is_string(...));
            self::field($slot, 'index', is_int(...));
        }
        if (isset($answer['dense'])) {
            self::listField(self::field($answer, 'dense', is_array(...)), 'features', is_array(...));
        }
        self::field(self::field($answer, 'hash', is_array(...)), 'scheme', is_string(...));
        $click = self::field($answer, 'click', is_array(...));
        self::field($click, 'output', is_string(...));
        self::field($click + ['column' => 0], 'column', is_int(...));
        return $answer;
    }

    /** @param array<mixed> $answer */
    private static function field(array $answer, string $name, \Closure $isRight): mixed
    {
        $value = $answer[$name] ?? null;
        if (!$isRight($value)) {
            throw new \UnexpectedValueException("the answer has no \"$name\", or one of another type");
        }
        return $value;
    }

    /**
     * @param array<mixed> $answer
     * @return list<mixed>
     */
    private static function listField(array $answer, string $name, \Closure $isRight): array
    {
        $values = self::field($answer, $name, static fn (mixed $value) => is_array($value) && array_is_list($value));
        foreach ($values as $value) {
            if (!$isRight($value)) {
                throw new \UnexpectedValueException("the answer has a value of another type in \"$name\"");
            }
        }
        return $values;
    }

    private static function isNumber(mixed $value): bool
    {
        return is_float($value) || is_int($value);
    }

    /**
     * Sends a request until there is an answer that a retry would not change.
     *
     * @template T
     * @param list<string> $headers
     * @param \Closure(array<string, mixed>, array<string, string>): T $read takes content and variants of an answer
     *     with status 200; throws UnexpectedValueException if it is unusable
     * @return T
     */
    private function call(
        string $method,
        string $path,
        string $body,
        array $headers,
        string $experimentKey,
        \Closure $read,
    ): mixed {
        $deadline = hrtime(true) / 1e6 + $this->timeoutMs;
        if ($experimentKey !== '') {
            $headers[] = 'x-experiment-key: ' . self::checkHeader($experimentKey);
        }
        if ($this->apiKey !== '') {
            $headers[] = 'Authorization: Bearer ' . self::checkHeader($this->apiKey);
        }
        if ($this->compress && strlen($body) >= self::COMPRESS_BYTES_MIN) {
            $body = gzencode($body, 1);
            $headers[] = 'Content-Encoding: gzip';
        }
        $this->tokens = min(self::TOKENS_MAX, $this->tokens + self::TOKENS_PER_CALL);
        $first = $this->next++;
        for ($tries = 0; ; ) {
            $remainingMs = (int) ($deadline - hrtime(true) / 1e6);
            if ($remainingMs < 1) {
                throw $this->deadlineExceeded();
            }
            $url = $this->urls[($first + $tries) % count($this->urls)] . $path;
            $sent = [...$headers, 'timeout-ms: ' . min($remainingMs, self::TIMEOUT_MS_MAX), 'Expect:'];
            [$status, $answered, $content] = $this->send($method, $url, $body, $sent, $remainingMs);
            $pauseMs = 0;
            if ($status === 200) {
                try {
                    $answer = json_decode($content, true);
                    if (!is_array($answer)) {
                        throw new \UnexpectedValueException('the answer is not JSON');
                    }
                    return $read($answer, self::readExperiments($answered));
                } catch (\UnexpectedValueException $problem) {
                    $error = new HypercubeException('UNAVAILABLE', $problem->getMessage());
                }
            } elseif ($status === 0) {
                $error = new HypercubeException('UNAVAILABLE', $content);
            } else {
                $error = HypercubeException::fromAnswer($status, $content);
                $pauseMs = $status === 429 ? self::readPauseMs($answered['retry-after'] ?? '') : 0;
            }
            if (!in_array($error->status, [0, 429, 502, 503], true)) {
                throw $error;
            }
            $backoffMs = min(self::BACKOFF_MAX_MS, self::BACKOFF_FIRST_MS * 2 ** $tries);
            $pauseMs = max($pauseMs, mt_rand() / mt_getrandmax() * $backoffMs);
            $tries++;
            $isTooLate = hrtime(true) / 1e6 + $pauseMs >= $deadline;
            if ($tries > $this->retriesMax || $isTooLate || $this->tokens < 1) {
                throw $error;
            }
            $this->tokens--;
            usleep((int) ($pauseMs * 1000));
        }
    }

    /**
     * @param list<string> $headers
     * @return array{int, array<string, string>, string} status (0: no answer, with the problem), headers, content
     */
    private function send(string $method, string $url, string $body, array $headers, int $timeoutMs): array
    {
        $answered = [];
        $content = '';
        $isTooLarge = false;
        curl_reset($this->curl);
        curl_setopt_array($this->curl, $this->curlOptions + [
            CURLOPT_URL => $url,
            CURLOPT_CUSTOMREQUEST => $method,
            CURLOPT_HTTPHEADER => $headers,
            CURLOPT_HTTP_VERSION => CURL_HTTP_VERSION_1_1,
            CURLOPT_PROTOCOLS => CURLPROTO_HTTP | CURLPROTO_HTTPS,
            // Called with decompressed bytes, so that the limit holds for them.
            CURLOPT_WRITEFUNCTION => static function ($curl, string $bytes) use (&$content, &$isTooLarge): int {
                $isTooLarge = strlen($content) + strlen($bytes) > self::ANSWER_BYTES_MAX;
                if ($isTooLarge) {
                    return 0;
                }
                $content .= $bytes;
                return strlen($bytes);
            },
            CURLOPT_NOSIGNAL => true,
            CURLOPT_TIMEOUT_MS => $timeoutMs,
            CURLOPT_HEADERFUNCTION => static function ($curl, string $line) use (&$answered): int {
                $parts = explode(':', $line, 2);
                if (count($parts) === 2) {
                    $answered[strtolower(trim($parts[0]))] = trim($parts[1]);
                }
                return strlen($line);
            },
        ]);
        if ($method === 'POST') {
            curl_setopt($this->curl, CURLOPT_POSTFIELDS, $body);
        }
        if ($this->compress) {
            curl_setopt($this->curl, CURLOPT_ENCODING, 'gzip');
        }
        if (curl_exec($this->curl) === false) {
            if ($isTooLarge) {
                return [0, [], $url . ': the answer is larger than ' . self::ANSWER_BYTES_MAX . ' bytes'];
            }
            if (curl_errno($this->curl) === CURLE_OPERATION_TIMEDOUT) {
                throw $this->deadlineExceeded();
            }
            return [0, [], $url . ': ' . curl_error($this->curl)];
        }
        return [curl_getinfo($this->curl, CURLINFO_RESPONSE_CODE), $answered, $content];
    }

    private function deadlineExceeded(): HypercubeException
    {
        return new HypercubeException('DEADLINE_EXCEEDED', "no answer within {$this->timeoutMs} ms");
    }

    /** The pause of a Retry-After header, which is a number of seconds or a date; 0 for other text. */
    private static function readPauseMs(string $text): float
    {
        if (preg_match('/^[0-9]+$/', $text)) {
            return 1000 * (float) $text;
        }
        $date = \DateTimeImmutable::createFromFormat(DATE_RFC7231, $text, new \DateTimeZone('UTC'));
        return $date === false ? 0 : 1000 * ($date->getTimestamp() - microtime(true));
    }

    private static function checkHeader(string $value): string
    {
        if (preg_match('/[\x00-\x1f\x7f]/', $value)) {
            throw new HypercubeException('INVALID_ARGUMENT', 'a key for a header has a control character');
        }
        return $value;
    }

    /** @param array<string, mixed> $value */
    private static function encode(array $value): string
    {
        try {
            return json_encode($value, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_PRESERVE_ZERO_FRACTION);
        } catch (\JsonException $error) {
            throw new HypercubeException('INVALID_ARGUMENT', $error->getMessage());
        }
    }

    /** @param list<array<mixed>> $rows */
    private static function join(string $name, array $rows, int $width, \Closure $toBytes): string
    {
        $data = '';
        foreach ($rows as $i => $row) {
            if (count($row) !== $width) {
                $message = "$name, row $i: expected $width values, got " . count($row);
                throw new HypercubeException('INVALID_ARGUMENT', $message);
            }
            $data .= $toBytes($row);
        }
        return $data;
    }

    /** @return array<string, mixed> */
    private static function binaryTensor(string $name, string $datatype, int $rows, int $width, int $bytes): array
    {
        return [
            'name' => $name, 'datatype' => $datatype, 'shape' => [$rows, $width],
            'parameters' => ['binary_data_size' => $bytes],
        ];
    }

    /**
     * @param list<array<string, mixed>> $inputs
     * @return array<string, mixed>
     */
    private static function inferRequest(array $inputs, ?int $priority): array
    {
        // KServe counts priorities from 1.
        return ['inputs' => $inputs] + ($priority === null ? [] : ['parameters' => ['priority' => $priority + 1]]);
    }

    /**
     * @param list<float|int> $probabilities
     * @param array<string, mixed> $counts
     * @param array<string, string> $experiments
     */
    private static function toPrediction(
        array $probabilities,
        string $model,
        string $version,
        array $counts,
        array $experiments,
    ): Prediction {
        return new Prediction(
            array_map(floatval(...), $probabilities),
            $model,
            $version,
            self::field($counts, 'tables_version', is_string(...)),
            self::field($counts, 'unseen', is_int(...)),
            self::field($counts, 'unavailable', is_int(...)),
            self::field($counts, 'degraded', is_bool(...)),
            $experiments,
        );
    }

    /**
     * @param array<string, string> $headers
     * @return array<string, string>
     */
    private static function readExperiments(array $headers): array
    {
        $experiments = [];
        foreach (explode(',', $headers['hypercube-experiments'] ?? '') as $pair) {
            if (str_contains($pair, '=')) {
                [$name, $variant] = explode('=', $pair, 2);
                $experiments[trim($name)] = trim($variant);
            }
        }
        return $experiments;
    }
}
