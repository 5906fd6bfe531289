/**
 * What features.json must agree with in a model, because serving would otherwise compute wrong
 * scores without an error. prune-model and cube-builder check it.
 */
import { type FeatureSpec, getModulo, type SlotSpec } from '../core/slots.ts';

type Dims = readonly (number | string | undefined)[];

/**
 * Finds a slot whose keys reach beyond a table whose rows are found by position. Ids that no hash
 * computes are not limited.
 * @returns what is wrong; undefined: nothing
 */
export function findLargeModulo(
  { hash, slots }: FeatureSpec,
  { embeddings, tables }: Pick<SlotSpec, 'embeddings' | 'tables'>,
): string | undefined {
  const byPosition = tables.filter((table) => table.keyed !== true && table.external !== true);
  for (const { name: table, rows } of byPosition) {
    const direct = embeddings.filter((one) => one.table === table && one.keys === undefined);
    const readers = new Set(direct.flatMap((embedding) => embedding.slots));
    for (const slot of slots.filter(({ name }) => readers.has(name))) {
      const modulo = getModulo(hash, slot);
      if (modulo === 0n && hash.scheme === 'raw') continue;
      if (modulo > 0n && modulo <= BigInt(rows)) continue;
      const keys = modulo === 0n ? 'unbounded keys (modulo 0)' : `modulo ${modulo}`;
      const owner = slot.modulo === undefined ? 'its hash' : `its slot ${slot.name}`;
      return (
        `${owner} has ${keys}, but table ${JSON.stringify(table)} has ${rows} rows; give the ` +
        `slot ${slot.name} the "modulo" that training uses, at most ${rows}`
      );
    }
  }
  return undefined;
}

/**
 * Finds a click column that the output does not have.
 * @param shape of the click output; undefined: unknown
 * @returns what is wrong; undefined: nothing, or the shape does not say
 */
export function findOutsideColumn(
  { output, column }: FeatureSpec['click'],
  shape: Dims | undefined,
): string | undefined {
  const width = shape?.length === 1 ? 1 : shape?.at(-1);
  const isMatrix = shape === undefined || shape.length === 1 || shape.length === 2;
  if (isMatrix && (typeof width !== 'number' || column < width)) return undefined;
  return (
    `its click column ${column} is outside the output ${JSON.stringify(output)} ` +
    describeShape(shape)
  );
}

/**
 * Finds a pooled slot in ids that the graph itself takes, which have one value each.
 * @param ids of a pruned or a whole graph
 */
export function findBagOfIds(
  { slots, dense }: Pick<FeatureSpec, 'slots' | 'dense'>,
  ids: SlotSpec['ids'] = [],
): string | undefined {
  const bags = new Set(slots.filter((slot) => slot.pooling !== undefined).map(({ name }) => name));
  const found = ids.find(
    (port) => port.kept && port.input !== dense?.input && port.slots.some((slot) => bags.has(slot)),
  );
  if (found === undefined) return undefined;
  return (
    `the graph input ${found.input} takes the ids themselves, so its slots must have one value ` +
    'each, not a bag'
  );
}

export function describeShape(shape: Dims | undefined): string {
  return shape === undefined
    ? 'of unknown shape'
    : `[${shape.map((dim) => dim ?? '?').join(', ')}]`;
}
