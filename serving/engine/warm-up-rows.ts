/**
 * Warm-up rows: JSON values in the format of golden.jsonl, converted to features when they are
 * used. They are published, recorded, or synthetic: zeros or random values that the model accepts.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { hasScoreFeature, splitGoldenRow } from '../../lib/core/golden-row.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { DenseFeature, FeatureSpec, Slot, SlotSpec } from '../../lib/core/slots.ts';

/** JSON rows, one per line, in the format of golden.jsonl. */
export interface WarmUpRows {
  /** The name of the source in errors. */
  readonly source: string;
  readonly values: readonly unknown[];
}

/** Synthetic requests that each instance predicts, as in Triton's model_warmup. */
export interface WarmUpEntry {
  readonly data: SyntheticData;
  /** Rows in a request. */
  readonly rows: number;
  /** Requests to each instance. */
  readonly count: number;
}

export const SYNTHETIC_DATA = ['zeros', 'random'] as const;
export type SyntheticData = (typeof SYNTHETIC_DATA)[number];

const ROWS_MAX = 1_000;
/** Values of a pooled slot in a random row. */
const BAG_VALUES_MAX = 3;
/** Bounds random values of features that are scaled by their logarithm. */
const LOG_MAX = 20;

/** @throws CubeError INVALID_ARGUMENT naming the line that is not JSON */
export function parseWarmUpRows(text: string, source: string, features: FeatureSpec): WarmUpRows {
  const values: unknown[] = [];
  const isFeature = hasScoreFeature(features);
  for (const [i, line] of text.split('\n').entries()) {
    if (line === '') continue;
    const place = `${source} line ${i + 1}`;
    const { value } = JsonReader.parseFile(line, place);
    values.push(isFeature ? value : splitGoldenRow(value, place).row);
    if (values.length === ROWS_MAX) break;
  }
  if (values.length > 0) return { source, values };
  throw new CubeError('INVALID_ARGUMENT', `${source}: no rows`);
}

/** random:64*10 */
export function formatWarmUpEntry({ data, rows, count }: WarmUpEntry): string {
  return `${data}:${rows}${count === 1 ? '' : `*${count}`}`;
}

/** Creates rows that a model accepts. The same model gets the same rows, so failures repeat. */
export class SyntheticRows {
  readonly #features: FeatureSpec;
  readonly #idBounds: ReadonlyMap<string, number>;
  #state = 0x9e3779b9;

  constructor(spec: SlotSpec & { readonly features: FeatureSpec }) {
    this.#features = spec.features;
    this.#idBounds = findIdBounds(spec);
  }

  create(data: SyntheticData, count: number): unknown[] {
    return Array.from({ length: count }, () =>
      data === 'zeros' ? this.#createZeros() : this.#createRandom(),
    );
  }

  /** "0" is a valid feature of every hash scheme, including raw; dense features are missing. */
  #createZeros(): object {
    const { slots, dense } = this.#features;
    return { dense: dense?.features.map(() => null) ?? [], categorical: slots.map(() => '0') };
  }

  #createRandom(): object {
    const { slots, dense } = this.#features;
    return {
      dense: dense?.features.map((feature) => this.#createDense(feature)) ?? [],
      categorical: slots.map((slot) => {
        if (slot.pooling === undefined) return this.#createFeature(slot);
        const count = Math.floor(this.#nextUnit() * (BAG_VALUES_MAX + 1));
        return Array.from({ length: count }, () => this.#createFeature(slot));
      }),
    };
  }

  #createFeature({ name }: Slot): string {
    const unit = this.#nextUnit();
    if (this.#features.hash.scheme !== 'raw') return Math.floor(unit * 2 ** 32).toString(36);
    return String(Math.floor(unit * (this.#idBounds.get(name) ?? 1)));
  }

  /** A value in -1..1 after scaling, where its logarithm allows that. */
  #createDense({ log, shift, scale }: DenseFeature): number {
    const x = shift + (2 * this.#nextUnit() - 1) / scale;
    if (!Number.isFinite(x)) return 0;
    return log ? Math.expm1(Math.min(Math.max(x, 0), LOG_MAX)) : x;
  }

  /** The next number in 0..1, exclusive (xorshift32). */
  #nextUnit(): number {
    this.#state ^= this.#state << 13;
    this.#state ^= this.#state >>> 17;
    this.#state ^= this.#state << 5;
    return (this.#state >>> 0) / 2 ** 32;
  }
}

/**
 * Finds below which number the ids of each slot exist in all its tables. A slot without a bound
 * takes only the id 0: the graph would fail for an id beyond a table of its own.
 */
function findIdBounds({ embeddings, tables, ids }: SlotSpec): ReadonlyMap<string, number> {
  const bounds = new Map<string, number>();
  if (embeddings.some(({ keys }) => keys !== undefined)) return bounds;
  const rowCounts = new Map(tables.map(({ name, rows }) => [name, rows]));
  for (const { table, slots } of embeddings) {
    const rows = Math.max(rowCounts.get(table) ?? 1, 1);
    for (const slot of slots) bounds.set(slot, Math.min(bounds.get(slot) ?? rows, rows));
  }
  for (const { kept, slots } of ids ?? []) {
    if (kept) for (const slot of slots) bounds.delete(slot);
  }
  return bounds;
}
