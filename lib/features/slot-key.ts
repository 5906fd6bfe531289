/**
 * Reads the key of one slot in the first row of a request. Rows of features and rows of keys give
 * the same key, whatever protocol they came by.
 */
import type { FeatureRows, KeyedRows } from '../core/feature-rows.ts';
import { RowHasher } from '../core/hash.ts';
import { keyToBigint } from '../core/keys.ts';
import type { FeatureSpec } from '../core/slots.ts';

type KeySpec = Pick<FeatureSpec, 'hash' | 'slots'>;

export class SlotKeyReader {
  readonly #hasher: RowHasher;
  /** Where the slot is among the slots of a row. */
  readonly #position: number;
  /** The key of a missing value; undefined: a missing value has none. */
  readonly #missingKey: bigint | undefined;

  private constructor({ hash, slots }: KeySpec, position: number) {
    const rule = slots[position]!;
    this.#hasher = new RowHasher(hash, [rule]);
    this.#position = position;
    const hasMissingKey = hash.scheme !== 'raw' || rule.missing !== undefined;
    this.#missingKey = hasMissingKey ? this.#hash('') : undefined;
  }

  /** @returns undefined when the model has no slot of this name */
  static find(spec: KeySpec, slot: string): SlotKeyReader | undefined {
    const position = spec.slots.findIndex(({ name }) => name === slot);
    return position < 0 ? undefined : new SlotKeyReader(spec, position);
  }

  /**
   * The key of the slot's first value in the first row. @returns undefined for a missing value
   * @throws CubeError INVALID_ARGUMENT when a feature is not a key (scheme raw only)
   */
  read(rows: FeatureRows | KeyedRows): bigint | undefined {
    const key = 'keys' in rows ? this.#readKey(rows) : this.#readFeature(rows);
    return key === this.#missingKey ? undefined : key;
  }

  #readKey({ keys, ends }: KeyedRows): bigint | undefined {
    const at = findFirstValue(ends, this.#position);
    // Rows are checked later, so there may be too few keys.
    return at === undefined || 2 * at + 1 >= keys.length ? undefined : keyToBigint(keys, at);
  }

  #readFeature({ features, ends, shared }: FeatureRows): bigint | undefined {
    const sharedAt = shared?.slots.indexOf(this.#position) ?? -1;
    if (shared !== undefined && sharedAt >= 0) {
      return this.#hashAt(shared.features, findFirstValue(shared.ends, sharedAt));
    }
    const before = shared?.slots.filter((slot) => slot < this.#position).length ?? 0;
    return this.#hashAt(features, findFirstValue(ends, this.#position - before));
  }

  #hashAt(features: readonly string[], at: number | undefined): bigint | undefined {
    const feature = at === undefined ? '' : (features[at] ?? '');
    return feature === '' ? undefined : this.#hash(feature);
  }

  #hash(feature: string): bigint {
    const key = new Uint32Array(2);
    this.#hasher.hashRows([feature], 1, key);
    return keyToBigint(key, 0);
  }
}

/** Where the values of a bag of the first row begin. @returns undefined for an empty bag */
function findFirstValue(ends: Uint32Array | undefined, bag: number): number | undefined {
  if (ends === undefined) return bag;
  const start = bag === 0 ? 0 : (ends[bag - 1] ?? 0);
  return start < (ends[bag] ?? 0) ? start : undefined;
}
