/**
 * One loaded version of a model with tables whose requests are tensors of the unpruned graph: it
 * has sequences of any length, or inputs that rows of features cannot express. Each request looks
 * up its own rows; then the pruned graph runs as a plain model does, in batches of equal shapes.
 */
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import type { GraphSignature } from '../../lib/core/graph-signature.ts';
import { f32BitsToF16 } from '../../lib/core/half-floats.ts';
import { REQUEST_VALUES_MAX } from '../../lib/core/limits.ts';
import type { LookupGroup, LookupSummary } from '../../lib/core/lookup-group.ts';
import { getTable, type Manifest } from '../../lib/core/manifest.ts';
import type { SlotSpec } from '../../lib/core/slots.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import { type EmbeddingKeys, TensorKeys } from '../../lib/features/tensor-keys.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { EmbeddingStore } from '../stores/embedding-store.ts';
import { getCallSpan } from './batch-span.ts';
import { DEFAULT_DEGRADATION, type DegradationPolicy } from './engine-options.ts';
import { checkGraphInputs } from './graph-request.ts';
import {
  type GraphCall,
  type GraphLoadOptions,
  type GraphPrediction,
  LoadedGraph,
} from './loaded-graph.ts';
import type { PredictOptions } from './prediction.ts';
import type { TensorModel } from './tensor-model.ts';
import { checkKeysMatch } from './version-files.ts';

export interface LookupGraphOptions extends Omit<GraphLoadOptions, 'name' | 'version'> {
  readonly manifest: Manifest;
  readonly spec: SlotSpec;
  readonly store: EmbeddingStore;
  /** Default: DEFAULT_DEGRADATION. */
  readonly policy?: DegradationPolicy;
  /** Cancels the load. */
  readonly signal?: AbortSignal;
}

/** Share of the time left that the lookup may take; the graph and the response need the rest. */
const LOOKUP_SHARE = 2 / 3;
/** Values of the rows of one request: 256 MiB. */
const ROW_VALUES_MAX = 1 << 26;
const RAW_HASH = { scheme: 'raw', seed: 0n, modulo: 0n } as const;

interface LookupGraphParts {
  readonly graph: LoadedGraph;
  readonly keys: TensorKeys;
  readonly signature: GraphSignature;
}

export class LookupGraph implements TensorModel {
  readonly signature: GraphSignature;
  readonly #manifest: Manifest;
  readonly #store: EmbeddingStore;
  readonly #policy: DegradationPolicy;
  readonly #graph: LoadedGraph;
  readonly #keys: TensorKeys;

  private constructor(options: LookupGraphOptions, { graph, keys, signature }: LookupGraphParts) {
    this.signature = signature;
    this.#manifest = options.manifest;
    this.#store = options.store;
    this.#policy = options.policy ?? DEFAULT_DEGRADATION;
    this.#graph = graph;
    this.#keys = keys;
  }

  /** @throws CubeError saying which part is missing or wrong; nothing stays behind */
  static async load(options: LookupGraphOptions): Promise<LookupGraph> {
    const { manifest, spec, store, batching } = options;
    const { bundle: name, version } = manifest;
    const keys = new TensorKeys(spec, `${name} ${version}`);
    checkKeysMatch({ hash: RAW_HASH, slots: [] }, manifest);
    options.onStep?.('tables');
    await store.prepare(manifest, options.signal);
    try {
      const graph = await LoadedGraph.load({
        ...options,
        name,
        version,
        batching: keys.isBatched ? batching : { ...batching, maxBatch: 0 },
      });
      try {
        const signature = joinSignatures(graph.signature, keys, `${name} ${version}`);
        return new LookupGraph(options, { graph, keys, signature });
      } catch (error) {
        await graph.close();
        throw error;
      }
    } catch (error) {
      await store.retire(manifest);
      throw error;
    }
  }

  get name(): string {
    return this.#graph.name;
  }

  get version(): string {
    return this.#graph.version;
  }

  get isBatched(): boolean {
    return this.#graph.isBatched;
  }

  get batching(): LoadedGraph['batching'] {
    return this.#graph.batching;
  }

  get stats(): LoadedGraph['stats'] {
    return this.#graph.stats;
  }

  get batcher(): LoadedGraph['batcher'] {
    return this.#graph.batcher;
  }

  get pool(): LoadedGraph['pool'] {
    return this.#graph.pool;
  }

  async predict(call: GraphCall, options: PredictOptions): Promise<GraphPrediction> {
    const { signature, isBatched } = this;
    const { tensors } = checkGraphInputs(call.inputs, signature, isBatched);
    const byName = new Map(
      signature.inputs.map(({ name }, i): [string, NamedTensor] => [
        name,
        { name, ...tensors[i]! },
      ]),
    );
    this.acquire();
    try {
      const startMs = systemClock.nowMs();
      const { groups, inputs, summary } = await this.#lookUp(byName, options);
      const lookupMicros = 1_000 * (systemClock.nowMs() - startMs);
      const { unseen, unavailable } = summary;
      const kept = this.#graph.signature.inputs.flatMap(({ name }) => byName.get(name) ?? []);
      const prediction = await this.#graph.predict(
        { inputs: [...kept, ...inputs], outputs: call.outputs },
        options,
      );
      const lookups = groups.reduce((sum, { count }) => sum + count, 0);
      this.stats.recordLookups({ lookups, unseen, unavailable, lookupMicros });
      const outcome = { unseen, unavailable, degraded: unavailable > 0, lookupMicros };
      return { lookups: outcome, ...prediction };
    } finally {
      this.release();
    }
  }

  /** @throws CubeError NOT_READY naming what is missing */
  checkAvailable(): Promise<void> {
    return this.#store.prepare(this.#manifest);
  }

  acquire(): void {
    this.#graph.acquire();
  }

  release(): void {
    this.#graph.release();
  }

  close(): Promise<void> {
    return this.#graph.close();
  }

  async retire(): Promise<void> {
    await this.close();
    await this.#store.retire(this.#manifest);
  }

  /** @returns the tensors of rows for the graph */
  async #lookUp(
    tensors: ReadonlyMap<string, NamedTensor>,
    options: PredictOptions,
  ): Promise<{ groups: readonly LookupGroup[]; inputs: NamedTensor[]; summary: LookupSummary }> {
    const keys = this.#keys.compute(tensors, REQUEST_VALUES_MAX);
    const groups = this.#createGroups(keys);
    const { version } = this.#manifest;
    let summary: LookupSummary = { version, unseen: 0, unavailable: 0 };
    const asked = groups.filter(({ count }) => count > 0);
    if (asked.length > 0) {
      const timeoutMs = LOOKUP_SHARE * (options.deadlineMs - systemClock.nowMs());
      const span = getCallSpan(options);
      summary = await this.#store.lookup(this.#manifest, asked, timeoutMs, span);
      this.#checkSummary(summary, asked);
    }
    return { groups, inputs: this.#createInputs(keys, groups), summary };
  }

  /** One group for each table, with the keys of its embeddings one after the other. */
  #createGroups(keys: readonly EmbeddingKeys[]): LookupGroup[] {
    const { embeddings } = this.#keys;
    let values = 0;
    const tables = new Set(embeddings.map(({ table }) => table));
    return [...tables].map((table) => {
      const parts = keys.filter((_, i) => embeddings[i]!.table === table);
      const words = new Uint32Array(parts.reduce((sum, part) => sum + part.keys.length, 0));
      let at = 0;
      for (const part of parts) {
        words.set(part.keys, at);
        at += part.keys.length;
      }
      const count = words.length / 2;
      const { dim } = getTable(this.#manifest, table);
      values += count * dim;
      if (values > ROW_VALUES_MAX) {
        const text = `the rows of one request have over ${ROW_VALUES_MAX} values: send fewer ids`;
        throw new CubeError('TOO_LARGE', text);
      }
      const rows = new Float32Array(count * dim);
      return { table, keys: words, count, rows, outcomes: new Uint8Array(count) };
    });
  }

  #checkSummary(summary: LookupSummary, groups: readonly LookupGroup[]): void {
    const { version, unavailable, reason, deadlineExceeded } = summary;
    if (version !== this.version) {
      const text = `the store answered from version ${version}, the graph is of ${this.version}`;
      throw new CubeError('INTERNAL', `${text}: nothing was predicted`);
    }
    const total = groups.reduce((sum, { count }) => sum + count, 0);
    const { onUnavailable, maxUnavailableShare } = this.#policy;
    if (onUnavailable === 'default' || unavailable <= maxUnavailableShare * total) return;
    const why = reason === undefined ? '' : ` (${reason})`;
    const code = deadlineExceeded ? 'DEADLINE_EXCEEDED' : 'UNAVAILABLE';
    const text = `no answer for ${unavailable} of ${total} lookups${why}; nothing was predicted`;
    this.stats.recordFailure(code);
    throw new CubeError(code, `${text}, try again`);
  }

  #createInputs(keys: readonly EmbeddingKeys[], groups: readonly LookupGroup[]): NamedTensor[] {
    const starts = new Map<string, number>();
    return this.#keys.embeddings.map(({ input: name, table, shape, axes }, i) => {
      const group = groups.find((one) => one.table === table);
      const { rows } = requireDefined(group, `the rows of table ${table}`);
      const { dim } = getTable(this.#manifest, table);
      const { keys: words, sizes } = keys[i]!;
      const start = starts.get(table) ?? 0;
      const end = start + (words.length / 2) * dim;
      starts.set(table, end);
      const values = rows.subarray(start, end);
      const isHalf = this.#getType(name) === 'FP16';
      return {
        name,
        dataType: isHalf ? 'FP16' : 'FP32',
        shape: [...sizes, ...shape.slice(axes.length)],
        data: isHalf ? toHalfFloats(values) : toBytes(values),
      };
    });
  }

  #getType(input: string): string | undefined {
    return this.#graph.signature.inputs.find(({ name }) => name === input)?.dataType;
  }
}

/**
 * The inputs of the unpruned graph: the ids, then the other inputs of the pruned one.
 * @throws CubeError INVALID_ARGUMENT when slots.json and the graph do not fit
 */
function joinSignatures(
  { inputs, outputs }: GraphSignature,
  keys: TensorKeys,
  source: string,
): GraphSignature {
  const rows = new Set(keys.embeddings.map(({ input }) => input));
  for (const name of rows) {
    const type = inputs.find((input) => input.name === name)?.dataType;
    if (type === 'FP32' || type === 'FP16') continue;
    const what = type === undefined ? 'which the graph has not' : `which is ${type} in the graph`;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${source}: slots.json names the input ${name}, ${what}`,
    );
  }
  const ids = keys.inputs.map((spec) => inputs.find(({ name }) => name === spec.name) ?? spec);
  const names = new Set(ids.map(({ name }) => name));
  const others = inputs.filter(({ name }) => !rows.has(name) && !names.has(name));
  return { inputs: [...ids, ...others], outputs };
}

function toBytes({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

function toHalfFloats({ buffer, byteOffset, length }: Float32Array): Uint8Array {
  const bits = new Uint32Array(buffer, byteOffset, length);
  return toBytes(Uint16Array.from(bits, f32BitsToF16));
}
