/**
 * Every limit of a serving process in one table: default, unit and reason. A request over a limit
 * gets an error and other requests continue. Anything without a limit here is bounded by one that
 * has a limit.
 */

/**
 * Maximum characters of an error's text on the wire: it may repeat a caller's name of megabytes.
 */
export const ERROR_TEXT_CHARS_MAX = 4096;

/** Maximum values of one slot in one row. A client must cut a longer history. */
export const BAG_VALUES_MAX = 1024;
/**
 * Maximum values of all slots and rows of one request with pooled slots: as many keys as a lookup
 * may have.
 */
export const REQUEST_VALUES_MAX: number = 1 << 20;

/**
 * Maximum layers of one shard of a table, a base and its deltas: a lookup may have to search each.
 */
export const CHAIN_LAYERS_MAX = 64;

export interface ServerLimits {
  /** Bytes of one baidu_std frame body, and of the body of a seek over HTTP. */
  readonly frameBytes: number;
  /** Bytes of one request's payload, or HTTP body, after decompression. */
  readonly inflatedBytes: number;
  /** Bytes of one HTTP request body. */
  readonly httpBodyBytes: number;
  /** Bytes of the head of one HTTP request. */
  readonly httpHeaderBytes: number;
  /** Milliseconds within which the head of an HTTP request, and the whole request, must arrive. */
  readonly httpHeadersMs: number;
  readonly httpRequestMs: number;
  /** Keys of one lookup or seek. */
  readonly keysPerRequest: number;
  /** Bytes of one response's rows. */
  readonly responseBytes: number;
  /**
   * Open connections; at the limit, a new one replaces the longest idle one. Connections that have
   * not shown their protocol have half of the places; beyond that a new one replaces the oldest.
   */
  readonly connections: number;
  /**
   * Concurrent HTTP requests over all connections (baidu_std calls are answered as they are read).
   */
  readonly httpInFlight: number;
  /**
   * Concurrent calls with deferred answers (disk, other threads, large lookups) over all
   * connections; further calls are refused.
   */
  readonly callsInFlight: number;
  /** Concurrent gRPC calls and streams over all connections. */
  readonly grpcInFlight: number;
  /** Concurrent gRPC calls and streams on one connection. */
  readonly grpcStreams: number;
  /** Bytes of one received gRPC message. */
  readonly grpcMessageBytes: number;
  /** Milliseconds between pings to a gRPC peer, and until it must answer one. */
  readonly grpcPingMs: number;
  /** Milliseconds that a draining server waits for calls in flight. */
  readonly drainMs: number;
  /** Milliseconds until the first bytes of a connection must show its protocol. */
  readonly sniffMs: number;
  /** Milliseconds without a byte from the peer until a connection is closed; 0: never. */
  readonly idleMs: number;
  /** Unsent bytes of one connection above which the server stops reading from it. */
  readonly outputHighWaterBytes: number;
  /** Milliseconds within which a peer must read `slowReaderBytes` of its pending output. */
  readonly slowReaderMs: number;
  readonly slowReaderBytes: number;
  /**
   * Bytes of unfinished frames of all connections above which the connection that adds more is
   * closed; and of announced HTTP bodies above which requests are refused.
   */
  readonly inputTotalBytes: number;
  /** Unsent bytes of all connections above which new calls are refused. */
  readonly outputTotalBytes: number;
}

export const DEFAULT_SERVER_LIMITS: ServerLimits = {
  /** brpc's own -max_body_size: a client of Cube never needs more. */
  frameBytes: 64 << 20,
  /** More than keysPerRequest keys need in Cube's own form; decompressing it takes some 50 ms. */
  inflatedBytes: 16 << 20,
  /** As many packed keys as keysPerRequest allows, and room for the head. */
  httpBodyBytes: 9 << 20,
  /** Node's default; a hundred times what our clients send. */
  httpHeaderBytes: 16 << 10,
  /** A client that takes longer is broken or hostile. */
  httpHeadersMs: 10_000,
  httpRequestMs: 60_000,
  /** 8 MiB of keys: far above a batch of a thousand rows with a thousand features. */
  keysPerRequest: 1 << 20,
  /**
   * A frame minus a head of 4096 groups, so that a peer with the default frame limit can read every
   * legal response.
   */
  responseBytes: (64 << 20) - (128 << 10),
  /**
   * A client process needs one connection; more than 4096 processes per replica need a proxy. At
   * the limit, the longest idle connection is closed for a new one.
   */
  connections: 4096,
  /** Control calls, JSON seeks and scrapes: a longer queue would outlast a caller's timeout. */
  httpInFlight: 256,
  /**
   * Each holds a copy of its keys and later its answer; at 1 ms each, the last one waits half a
   * second.
   */
  callsInFlight: 512,
  /** With messages of the largest size half received, as many bytes as inputTotalBytes. */
  grpcInFlight: 256,
  grpcStreams: 256,
  /** gRPC's default: half a million keys. */
  grpcMessageBytes: 4 << 20,
  /**
   * Detects peers that lost power, and peers that a broken HTTP/2 frame left hanging, which nothing
   * else detects.
   */
  grpcPingMs: 20_000,
  /** Shorter than supervisors wait between SIGTERM and SIGKILL. */
  drainMs: 10_000,
  /** A connected client sends at once; ten seconds allow for a slow network. */
  sniffMs: 10_000,
  /**
   * brpc's servers never close quiet connections, and its clients fail calls when one is closed.
   * Probes find dead peers, and a full server closes the longest idle connection.
   */
  idleMs: 0,
  /** Several responses of a large batch; outputTotalBytes limits the sum. */
  outputHighWaterBytes: 1 << 20,
  /** A client that reads nothing for ten seconds has given up long before. */
  slowReaderMs: 10_000,
  /**
   * 100 KB/s: at a lower rate one response of the largest size would occupy memory for more than
   * ten minutes.
   */
  slowReaderBytes: 1 << 20,
  /** Sixteen frames of the largest size half received at once. */
  inputTotalBytes: 1 << 30,
  /** Memory that the process may use for peers that do not read. */
  outputTotalBytes: 512 << 20,
};

export interface ChannelLimits {
  /** Milliseconds until a connection attempt fails. */
  readonly connectTimeoutMs: number;
  /** Bytes of one response frame body, and of one request frame body. */
  readonly maxFrameBytes: number;
  /** Bytes of the read buffer, which the connection keeps. */
  readonly readBufferBytes: number;
  /** Concurrent calls; further calls are refused with OVERLOADED. */
  readonly maxInFlight: number;
  /**
   * Milliseconds without a byte from the peer, while calls expire, until the connection counts as
   * dead.
   */
  readonly silenceMs: number;
  /**
   * Milliseconds before a broken connection is retried: the first wait, doubled up to the second.
   */
  readonly backoffMinMs: number;
  readonly backoffMaxMs: number;
}

export const DEFAULT_CHANNEL_LIMITS: ChannelLimits = {
  /** Within a data centre a connection takes a millisecond, or fails. */
  connectTimeoutMs: 1000,
  maxFrameBytes: 64 << 20,
  /** Some thirty responses of a common size, for one connection to a replica. */
  readBufferBytes: 256 << 10,
  /** At 10 µs per call this is 10 ms of a server core: more only adds latency. */
  maxInFlight: 1024,
  /**
   * A peer that lost power never closes: without this, its connection would swallow calls for
   * minutes.
   */
  silenceMs: 5000,
  /**
   * A restarting server is retried soon; a dead one costs a connection attempt every two seconds.
   */
  backoffMinMs: 20,
  backoffMaxMs: 2000,
};
