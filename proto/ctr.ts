/** Codec of hypercube.CtrService (ctr.proto): requests and responses, both directions. */
import { CubeError } from '../lib/core/errors.ts';
import {
  WIRE_BYTES,
  WIRE_FIXED32,
  WIRE_FIXED64,
  WIRE_VARINT,
  WireReader,
  WireWriter,
} from './wire.ts';

/**
 * The HTTP header and gRPC trailer of degraded responses, with the value true, in every protocol.
 */
export const DEGRADED_KEY = 'hypercube-degraded';
/** The header of a request (gRPC: metadata) by which it is assigned to experiments. */
export const EXPERIMENT_KEY = 'x-experiment-key';
export const EXPERIMENT_KEY_CHARS_MAX = 256;
/** The header of an answer (gRPC: trailer) with its variants: `experiment=variant, …`. */
export const EXPERIMENTS_KEY = 'hypercube-experiments';

/** The variant of a request in each experiment, by the experiment's name. */
export type Variants = Readonly<Record<string, string>>;

/**
 * @param text of the header or trailer EXPERIMENTS_KEY; undefined or '' without experiments
 * @throws CubeError INTERNAL when it is not of this form
 */
export function parseVariants(text: string | undefined): Variants | undefined {
  if (text === undefined || text === '') return undefined;
  const pairs = text.split(', ').map((pair) => {
    const [experiment = '', variant = '', ...rest] = pair.split('=');
    if (experiment !== '' && variant !== '' && rest.length === 0) return [experiment, variant];
    throw new CubeError('INTERNAL', `${EXPERIMENTS_KEY}: expected experiment=variant, got ${pair}`);
  });
  return Object.fromEntries(pairs);
}

export const CTR_SERVICE = 'hypercube.CtrService';
export const CTR_PREDICT = 'Predict';
export const CTR_PREDICT_STREAM = 'PredictStream';

export interface CtrSharedFeatures {
  readonly slots: Uint32Array;
  readonly features: readonly string[];
  readonly ends: Uint32Array;
}

/** Fields as in the .proto; missing ones are empty. */
export interface CtrRequest {
  readonly model: string;
  readonly version: string;
  readonly label: string;
  readonly rowCount: number;
  readonly dense: Float64Array;
  readonly features: readonly string[];
  /** Words (low, high). */
  readonly keys: Uint32Array;
  readonly scaled: Float32Array;
  readonly ends: Uint32Array;
  readonly shared: CtrSharedFeatures | undefined;
  readonly tsv: Uint8Array;
  readonly priority: number | undefined;
  readonly detail: boolean;
  readonly timings: boolean;
}

export interface CtrSlotOutcome {
  readonly slot: string;
  readonly hit: number;
  readonly unseen: number;
  readonly unavailable: number;
}

export interface CtrTimings {
  readonly queueMicros: number;
  readonly lookupMicros: number;
  readonly inferMicros: number;
}

export interface CtrResponse {
  readonly model: string;
  readonly version: string;
  readonly tablesVersion: string;
  readonly probabilities: Float32Array;
  readonly unseen: number;
  readonly unavailable: number;
  readonly degraded: boolean;
  /** Present when requested. */
  readonly slots?: readonly CtrSlotOutcome[];
  readonly timings?: CtrTimings;
}

const NO_BYTES = new ArrayBuffer(0);
const NO_ENDS = new Uint32Array(0);
const NO_TEXT = new Uint8Array(0);

/**
 * Runs of a repeated field of fixed-width values, joined at the end. The runs are views of the
 * message, whose size bounds them.
 */
class FixedRuns {
  readonly #width: number;
  readonly #wireType: number;
  readonly #runs: Uint8Array[] = [];
  #bytes = 0;

  constructor(width: 4 | 8) {
    this.#width = width;
    this.#wireType = width === 4 ? WIRE_FIXED32 : WIRE_FIXED64;
  }

  /** Adds a packed run, or one value with its own tag. */
  add(reader: WireReader): void {
    const { bytes, position, field } = reader;
    let run: Uint8Array;
    if (reader.wireType === WIRE_BYTES) run = reader.view();
    else {
      reader.expect(this.#wireType);
      reader.skip();
      run = bytes.subarray(position, reader.position);
    }
    this.#runs.push(run);
    this.#bytes += run.length;
    if (this.#bytes % this.#width !== 0) {
      throw new CubeError('INVALID_ARGUMENT', `protobuf: field ${field} ends inside a value`);
    }
  }

  /** The values' bytes in a new buffer, aligned for any typed array. */
  joined(): ArrayBuffer {
    if (this.#bytes === 0) return NO_BYTES;
    const joined = new Uint8Array(new ArrayBuffer(this.#bytes));
    let at = 0;
    for (const run of this.#runs) {
      joined.set(run, at);
      at += run.length;
    }
    return joined.buffer;
  }
}

/** Reads repeated values and limits their number in a message. */
class ValueLimiter {
  #remaining: number;

  constructor(max: number) {
    this.#remaining = max;
  }

  text(reader: WireReader, into: string[]): void {
    reader.expect(WIRE_BYTES);
    this.#take();
    into.push(reader.string());
  }

  varints(reader: WireReader, into: number[]): void {
    if (reader.wireType === WIRE_VARINT) {
      this.#take();
      into.push(reader.uint32());
      return;
    }
    reader.expect(WIRE_BYTES);
    const run = reader.message();
    while (run.position < run.end) {
      this.#take();
      into.push(run.uint32());
    }
  }

  #take(): void {
    if (this.#remaining === 0) {
      throw new CubeError('TOO_LARGE', 'the rows have too many values: send fewer rows per call');
    }
    this.#remaining--;
  }
}

/**
 * @param valuesMax limit of features, shared features and ends together; the message's size bounds
 * the rest
 * @throws CubeError INVALID_ARGUMENT when the bytes are not a PredictRequest, TOO_LARGE
 */
export function decodeCtrRequest(bytes: Uint8Array, valuesMax: number): CtrRequest {
  const reader = new WireReader(bytes);
  const values = new ValueLimiter(valuesMax);
  const names = ['', '', '', ''];
  const dense = new FixedRuns(8);
  const keys = new FixedRuns(8);
  const scaled = new FixedRuns(4);
  const features: string[] = [];
  const ends: number[] = [];
  let [rowCount, tsv, shared] = [0, NO_TEXT, undefined as CtrSharedFeatures | undefined];
  let [priority, detail, timings] = [undefined as number | undefined, false, false];
  while (reader.next()) {
    const { field } = reader;
    if (field <= 3) {
      reader.expect(WIRE_BYTES);
      names[field] = reader.string();
    } else if (field === 4) rowCount = readVarint(reader);
    else if (field === 5) dense.add(reader);
    else if (field === 6) values.text(reader, features);
    else if (field === 7) keys.add(reader);
    else if (field === 8) scaled.add(reader);
    else if (field === 9) values.varints(reader, ends);
    else if (field === 10) {
      reader.expect(WIRE_BYTES);
      shared = decodeShared(reader.message(), values);
    } else if (field === 11) {
      reader.expect(WIRE_BYTES);
      tsv = new Uint8Array(reader.view());
    } else if (field === 12) priority = readVarint(reader);
    else if (field === 13) detail = readVarint(reader) !== 0;
    else if (field === 14) timings = readVarint(reader) !== 0;
    else reader.skip();
  }
  const [, model = '', version = '', label = ''] = names;
  return {
    model,
    version,
    label,
    dense: new Float64Array(dense.joined()),
    keys: new Uint32Array(keys.joined()),
    scaled: new Float32Array(scaled.joined()),
    ends: ends.length === 0 ? NO_ENDS : Uint32Array.from(ends),
    rowCount,
    features,
    shared,
    tsv,
    priority,
    detail,
    timings,
  };
}

function readVarint(reader: WireReader): number {
  reader.expect(WIRE_VARINT);
  return reader.uint32();
}

function decodeShared(reader: WireReader, values: ValueLimiter): CtrSharedFeatures {
  const slots: number[] = [];
  const features: string[] = [];
  const ends: number[] = [];
  while (reader.next()) {
    if (reader.field === 1) values.varints(reader, slots);
    else if (reader.field === 2) values.text(reader, features);
    else if (reader.field === 3) values.varints(reader, ends);
    else reader.skip();
  }
  return { slots: Uint32Array.from(slots), features, ends: Uint32Array.from(ends) };
}

export function encodeCtrRequest(request: CtrRequest): Uint8Array {
  const { dense, features, keys, scaled, ends, shared, tsv, priority } = request;
  const writer = new WireWriter(1024 + tsv.length + 8 * dense.length + 4 * keys.length);
  writeText(writer, 1, request.model);
  writeText(writer, 2, request.version);
  writeText(writer, 3, request.label);
  writeCount(writer, 4, request.rowCount);
  writeFixed(writer, 5, dense);
  for (const feature of features) writer.string(6, feature);
  writeFixed(writer, 7, keys);
  writeFixed(writer, 8, scaled);
  writeVarints(writer, 9, ends);
  if (shared !== undefined) {
    writer.message(10, (inner) => {
      writeVarints(inner, 1, shared.slots);
      for (const feature of shared.features) inner.string(2, feature);
      writeVarints(inner, 3, shared.ends);
    });
  }
  if (tsv.length > 0) writer.bytes(11, tsv);
  if (priority !== undefined) writer.uint(12, priority);
  if (request.detail) writer.uint(13, 1);
  if (request.timings) writer.uint(14, 1);
  return writer.finish();
}

export function encodeCtrResponse(response: CtrResponse): Uint8Array {
  const { probabilities, slots, timings } = response;
  const writer = new WireWriter(256 + 4 * probabilities.length);
  writeText(writer, 1, response.model);
  writeText(writer, 2, response.version);
  writeText(writer, 3, response.tablesVersion);
  writeFixed(writer, 4, probabilities);
  writeCount(writer, 5, response.unseen);
  writeCount(writer, 6, response.unavailable);
  if (response.degraded) writer.uint(7, 1);
  for (const { slot, hit, unseen, unavailable } of slots ?? []) {
    writer.message(8, (inner) => {
      writeText(inner, 1, slot);
      writeCount(inner, 2, hit);
      writeCount(inner, 3, unseen);
      writeCount(inner, 4, unavailable);
    });
  }
  if (timings !== undefined) {
    writer.message(9, (inner) => {
      writeCount(inner, 1, timings.queueMicros);
      writeCount(inner, 2, timings.lookupMicros);
      writeCount(inner, 3, timings.inferMicros);
    });
  }
  return writer.finish();
}

/** @throws CubeError INVALID_ARGUMENT when the bytes are not a PredictResponse */
export function decodeCtrResponse(bytes: Uint8Array): CtrResponse {
  const reader = new WireReader(bytes);
  const names = ['', '', '', ''];
  const counts = [0, 0, 0];
  const probabilities = new FixedRuns(4);
  const slots: CtrSlotOutcome[] = [];
  let timings: CtrTimings | undefined;
  while (reader.next()) {
    const { field } = reader;
    if (field <= 3) names[field] = reader.string();
    else if (field === 4) probabilities.add(reader);
    else if (field <= 7) counts[field - 5] = readVarint(reader);
    else if (field === 8) slots.push(decodeSlot(reader.message()));
    else if (field === 9) {
      const [, queueMicros = 0, lookupMicros = 0, inferMicros = 0] = decodeCounts(reader.message());
      timings = { queueMicros, lookupMicros, inferMicros };
    } else reader.skip();
  }
  const [, model = '', version = '', tablesVersion = ''] = names;
  const [unseen = 0, unavailable = 0, degraded = 0] = counts;
  return {
    model,
    version,
    tablesVersion,
    probabilities: new Float32Array(probabilities.joined()),
    unseen,
    unavailable,
    degraded: degraded !== 0,
    ...(slots.length === 0 ? {} : { slots }),
    ...(timings === undefined ? {} : { timings }),
  };
}

function decodeSlot(reader: WireReader): CtrSlotOutcome {
  const { bytes, position, end } = reader;
  let slot = '';
  while (reader.next()) {
    if (reader.field === 1) slot = reader.string();
    else reader.skip();
  }
  const [, , hit = 0, unseen = 0, unavailable = 0] = decodeCounts(
    new WireReader(bytes, position, end),
  );
  return { slot, hit, unseen, unavailable };
}

/** The numbers of the message; index = field. */
function decodeCounts(reader: WireReader): number[] {
  const counts: number[] = [];
  while (reader.next()) {
    if (reader.wireType === WIRE_VARINT && reader.field <= 4)
      counts[reader.field] = reader.uint32();
    else reader.skip();
  }
  return counts;
}

function writeText(writer: WireWriter, field: number, text: string): void {
  if (text !== '') writer.string(field, text);
}

function writeCount(writer: WireWriter, field: number, count: number): void {
  if (count !== 0) writer.uint(field, count);
}

/** All supported machines are little-endian, as the wire is. */
function writeFixed(
  writer: WireWriter,
  field: number,
  values: Float64Array | Float32Array | Uint32Array,
): void {
  if (values instanceof Float32Array && values.length <= SHORT_FLOATS) {
    writeShortFloats(writer, field, values);
    return;
  }
  const { buffer, byteOffset, byteLength } = values;
  if (byteLength > 0) writer.bytes(field, new Uint8Array(buffer, byteOffset, byteLength));
}

/** A short array has no buffer until it is asked for, and V8 then allocates one. */
const SHORT_FLOATS = 16;
const shortFloats = new Float32Array(SHORT_FLOATS);
const shortFloatBytes = new Uint8Array(shortFloats.buffer);

function writeShortFloats(writer: WireWriter, field: number, values: Float32Array): void {
  if (values.length === 0) return;
  shortFloats.set(values);
  writer.bytes(field, shortFloatBytes.subarray(0, values.byteLength));
}

function writeVarints(writer: WireWriter, field: number, values: Uint32Array): void {
  if (values.length === 0) return;
  const run = new WireWriter(2 * values.length);
  for (const value of values) run.varint(value);
  writer.bytes(field, run.finish());
}
