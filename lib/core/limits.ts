/**
 * Every limit of a serving process, in one table: default, unit and why. A request over a limit gets an error and
 * the others go on; what has no limit here is bounded by one that has.
 */

/** Characters of an error's text on the wire: a name that a caller made up comes back in it, and may be megabytes. */
export const ERROR_TEXT_CHARS_MAX = 4096;

/** Values of one slot in one row: a history longer than this is cut by whoever keeps it. */
export const BAG_VALUES_MAX = 1024;
/** Values of all slots and rows of one request that has slots of several values: as many keys as a lookup may have. */
export const REQUEST_VALUES_MAX: number = 1 << 20;

/** Layers of one shard of a table, a base and its deltas: a lookup may have to look into each. */
export const CHAIN_LAYERS_MAX = 64;

export interface ServerLimits {
  /** Bytes of one baidu_std frame body. */
  readonly frameBytes: number;
  /** Bytes of one request's payload, or HTTP body, once it is decompressed. */
  readonly inflatedBytes: number;
  /** Bytes of one HTTP request body. */
  readonly httpBodyBytes: number;
  /** Bytes of the head of one HTTP request. */
  readonly httpHeaderBytes: number;
  /** Milliseconds within which the head of an HTTP request must be there, and all of it. */
  readonly httpHeadersMs: number;
  readonly httpRequestMs: number;
  /** Characters of one JSON seek: every key costs the event loop far more than a packed one does. */
  readonly jsonChars: number;
  /** Keys of one lookup or seek. */
  readonly keysPerRequest: number;
  /** Bytes of one response's rows. */
  readonly responseBytes: number;
  /** Open connections. */
  readonly connections: number;
  /** HTTP requests being answered at once, over all connections (baidu_std calls are answered as they are read). */
  readonly httpInFlight: number;
  /** Calls whose answers are deferred (disk, other threads, large lookups), over all connections; more are refused. */
  readonly callsInFlight: number;
  /** gRPC calls and streams open at once, over all connections. */
  readonly grpcInFlight: number;
  /** The same on one connection. */
  readonly grpcStreams: number;
  /** Bytes of one gRPC message to us. */
  readonly grpcMessageBytes: number;
  /** Milliseconds between pings to a gRPC peer, and within which it must answer one. */
  readonly grpcPingMs: number;
  /** Milliseconds that a stopping server waits for calls in flight. */
  readonly drainMs: number;
  /** Milliseconds until the first bytes of a connection must say which protocol it speaks. */
  readonly sniffMs: number;
  /** Milliseconds without a byte from the peer after which a connection is closed. */
  readonly idleMs: number;
  /** Unsent bytes of one connection above which nothing more is read from it. */
  readonly outputHighWaterBytes: number;
  /** Milliseconds within which a peer must take `slowReaderBytes` of what waits for it. */
  readonly slowReaderMs: number;
  readonly slowReaderBytes: number;
  /**
   * Bytes of unfinished frames of all connections together above which the connection that adds more is closed; and of
   * HTTP bodies announced, above which requests are refused.
   */
  readonly inputTotalBytes: number;
  /** Unsent bytes of all connections together above which new calls are refused. */
  readonly outputTotalBytes: number;
}

export const DEFAULT_SERVER_LIMITS: ServerLimits = {
  /** brpc's own -max_body_size: a client of Cube never needs more. */
  frameBytes: 64 << 20,
  /** More than keysPerRequest keys in Cube's own form need; inflating it takes some 50 ms. */
  inflatedBytes: 16 << 20,
  /** As many packed keys as keysPerRequest allows, and room for the head. */
  httpBodyBytes: 9 << 20,
  /** Node's own; a hundred times what our callers send. */
  httpHeaderBytes: 16 << 10,
  /** Who takes longer is a broken or hostile client. */
  httpHeadersMs: 10_000,
  httpRequestMs: 60_000,
  /** About 50,000 keys of 20 digits: some 40 ms during which nobody else is answered. */
  jsonChars: 1 << 20,
  /** 8 MiB of keys: far above a batch of a thousand rows with a thousand features. */
  keysPerRequest: 1 << 20,
  /** A frame less a head of 4096 groups, so that a peer with the default frame limit can read every legal response. */
  responseBytes: (64 << 20) - (128 << 10),
  /** A client process needs one; 4096 processes per replica before a proxy is due. */
  connections: 4096,
  /** Control calls, JSON seeks and scrapes: beyond this, waiting would be longer than a caller's patience. */
  httpInFlight: 256,
  /** Each holds a copy of its keys and later its answer; at a millisecond each the last waits half a second. */
  callsInFlight: 512,
  /** With messages of the largest size half-way in, as many bytes as inputTotalBytes. */
  grpcInFlight: 256,
  grpcStreams: 256,
  /** gRPC's own default: half a million keys. */
  grpcMessageBytes: 4 << 20,
  /** Finds peers that lost their power, and those that a broken HTTP/2 frame left hanging, which nothing else does. */
  grpcPingMs: 20_000,
  /** Within what supervisors give a process between SIGTERM and SIGKILL. */
  drainMs: 10_000,
  /** A connected client sends at once; ten seconds forgives a slow network. */
  sniffMs: 10_000,
  /** Pooled clients keep connections between bursts; a dead peer is forgotten within ten minutes. */
  idleMs: 600_000,
  /** Several responses of a large batch; outputTotalBytes bounds the sum. */
  outputHighWaterBytes: 1 << 20,
  /** A reader that takes nothing for ten seconds has lost its caller long ago. */
  slowReaderMs: 10_000,
  /** 100 KB/s: below it one answer of the largest size would be held for more than ten minutes. */
  slowReaderBytes: 1 << 20,
  /** Sixteen frames of the largest size may be half-way in at once. */
  inputTotalBytes: 1 << 30,
  /** What the process may spend on peers that do not read. */
  outputTotalBytes: 512 << 20,
};

export interface ChannelLimits {
  /** Milliseconds until a connection must be made. */
  readonly connectTimeoutMs: number;
  /** Bytes of one response frame body, and of one request's. */
  readonly maxFrameBytes: number;
  /** Bytes read at once: memory that the connection keeps. */
  readonly readBufferBytes: number;
  /** Calls without an answer yet; more are refused with OVERLOADED. */
  readonly maxInFlight: number;
  /** Milliseconds without a byte back, while calls expire, after which the connection is taken for dead. */
  readonly silenceMs: number;
  /** Milliseconds before a broken connection is tried again: the first wait, doubled up to the second. */
  readonly backoffMinMs: number;
  readonly backoffMaxMs: number;
}

export const DEFAULT_CHANNEL_LIMITS: ChannelLimits = {
  /** Within a data centre a connection takes a millisecond, or never. */
  connectTimeoutMs: 1000,
  maxFrameBytes: 64 << 20,
  /** Some thirty answers of a common size, for one connection to a replica. */
  readBufferBytes: 256 << 10,
  /** At 10 µs a call this is 10 ms of a server core: more only adds delay. */
  maxInFlight: 1024,
  /** A peer that lost its power never closes: without this, its connection would swallow calls for minutes. */
  silenceMs: 5000,
  /** A restarting server is tried soon; a dead one costs a connection attempt every two seconds. */
  backoffMinMs: 20,
  backoffMaxMs: 2000,
};
