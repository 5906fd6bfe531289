/**
 * Finds what is allowed in features.json but is more often a mistake, which a comparison with the
 * full model cannot see because it starts from ids.
 */
import type { FeatureSpec, IdsInput, SlotSpec } from '../core/slots.ts';
import { getModulo } from '../core/slots.ts';

/** Fields of rows, and tensors of KServe and TensorFlow Serving (docs/wire/serving.md). */
const RESERVED_NAMES = ['label', 'categorical', 'dense', 'keys'];

/** The features, and what is known of the graph that takes them. */
export interface CheckedFeatures {
  readonly features: FeatureSpec;
  readonly ids: readonly IdsInput[];
  /** Empty: no graph is known. */
  readonly embeddings: SlotSpec['embeddings'];
  readonly tables: SlotSpec['tables'];
}

/** @returns a sentence for each finding; empty: none */
export function findFeatureWarnings(checked: CheckedFeatures): string[] {
  return [
    ...findSharedIndexes(checked.features),
    ...findSharedNames(checked.features),
    ...findReservedNames(checked.features),
    ...findUnreachableRows(checked),
    ...findReorderedIds(checked),
  ];
}

/** Raw ids do not depend on the index. */
function findSharedIndexes({ hash, slots }: FeatureSpec): string[] {
  if (hash.scheme === 'raw') return [];
  const owners = new Map<number, string>();
  const found: string[] = [];
  for (const { name, index } of slots) {
    const owner = owners.get(index);
    if (owner === undefined) owners.set(index, name);
    else {
      found.push(`slots ${owner} and ${name} have the index ${index}, so equal values share a key`);
    }
  }
  return found;
}

/** A row by name would give both the same value. */
function findSharedNames({ slots, dense }: FeatureSpec): string[] {
  const names = new Set(dense?.features.map(({ name }) => name));
  return slots
    .filter(({ name }) => names.has(name))
    .map(({ name }) => `a slot and a dense feature have the name ${JSON.stringify(name)}`);
}

/** Requests by name cannot give values of such features, and some are read as something else. */
function findReservedNames({ slots, dense }: FeatureSpec): string[] {
  const names = [...slots, ...(dense?.features ?? [])].map(({ name }) => name);
  return RESERVED_NAMES.filter((name) => names.includes(name)).map(
    (name) =>
      `the name ${JSON.stringify(name)} of a feature is a field of requests, which therefore ` +
      'cannot give the feature by name',
  );
}

/** Row numbers that no key of a slot reaches; computed keys and tables with keys have none. */
function findUnreachableRows({ features, embeddings, tables }: CheckedFeatures): string[] {
  const { hash, slots } = features;
  const found = new Set<string>();
  for (const { name, rows, keyed, external } of tables) {
    if (keyed === true || external === true) continue;
    const direct = embeddings.filter(({ table, keys }) => table === name && keys === undefined);
    const readers = new Set(direct.flatMap((embedding) => embedding.slots));
    for (const slot of slots.filter((one) => readers.has(one.name))) {
      const modulo = getModulo(hash, slot);
      if (modulo === 0n || modulo >= BigInt(rows)) continue;
      const field = slot.modulo === undefined ? 'hash.modulo' : `slot ${slot.name}: modulo`;
      found.add(
        `${field} ${modulo} reaches only the first ${modulo} of the ${rows} rows of ` +
          `table ${JSON.stringify(name)}`,
      );
    }
  }
  return [...found];
}

/** Each ids input may list its slots in any order, but usually has the order of "slots". */
function findReorderedIds({ features, ids }: CheckedFeatures): string[] {
  const positions = new Map(features.slots.map(({ name }, i) => [name, i]));
  return ids.flatMap(({ input, slots: listed }) => {
    const order = listed.map((name) => positions.get(name) ?? -1);
    const at = order.findIndex((position, i) => position < (order[i - 1] ?? -1));
    if (at < 0) return [];
    return (
      `ids input ${JSON.stringify(input)} lists ${listed[at - 1]} before ${listed[at]}, but ` +
      '"slots" has them the other way round'
    );
  });
}
