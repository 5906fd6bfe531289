/**
 * Builds slots.json: which input of the pruned graph takes which slots' rows of which table. With features.json, what
 * the training script said is first checked against the graph: a mismatch names both sides.
 */
import { withBagPooling } from '../../lib/core/bag-slots.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { KeyExpression } from '../../lib/core/key-expression.ts';
import type {
  EmbeddingInput,
  FeatureSpec,
  GraphPort,
  IdsSpec,
  SlotSpec,
  TrainedFeatures,
} from '../../lib/core/slots.ts';
import {
  type CutLookup,
  type CutModel,
  type Dim,
  type Port,
  plainColumns,
  rowElements,
} from './cut-model.ts';

/** @throws CubeError INVALID_ARGUMENT when features.json and the graph do not fit each other */
export function buildSlotSpec(cut: CutModel, features: TrainedFeatures | undefined): SlotSpec {
  if (features !== undefined) {
    checkIds(features, cut);
    checkHash(features, cut);
    checkRest(features, cut);
  }
  const tables = new Map(cut.tables.map((table) => [table.source, table]));
  const embeddings = cut.lookups.map((lookup): EmbeddingInput => {
    const table = tables.get(lookup.table)!;
    const columns = plainColumns(lookup);
    const { bags, paddingId, lodLevel } = lookup;
    return {
      input: lookup.input,
      table: table.name,
      dim: table.dim,
      dtype: 'f32',
      shape: lookup.shape.map((dim) => (typeof dim === 'number' ? dim : -1)),
      slots: slotsOf(lookup, features),
      ids: lookup.ids[0]!.name,
      ...(columns === undefined ? { keys: lookup.keys } : { columns }),
      ...(bags === undefined ? {} : { bags }),
      ...(paddingId === undefined ? {} : { paddingId }),
      ...(lodLevel === undefined ? {} : { lodLevel }),
    };
  });
  return {
    embeddings,
    tables: cut.tables.map(({ name, rows, dim, isExternal, readKeys }) => ({
      ...{ name, rows, dim, dtype: 'f32' as const },
      ...(isExternal === true ? { external: true } : {}),
      ...(readKeys === undefined ? {} : { keyed: true }),
    })),
    ids: idsOf(cut, features),
    ...(cut.maps.length === 0 ? {} : { maps: cut.maps }),
    graph: {
      inputs: cut.keptInputs
        .filter(({ name, dtype }) => !isIds(cut, name) || !/^int(32|64)$/.test(dtype))
        .map(toGraphPort),
      outputs: cut.outputs.map(toGraphPort),
    },
    features: features && withBagPooling(toFeatureSpec(features), embeddings),
  };
}

function isIds({ lookups }: CutModel, input: string): boolean {
  return lookups.some(({ ids }) => ids.some(({ name }) => name === input));
}

function toGraphPort({ name, dtype, shape }: Port): GraphPort {
  const dims = shape?.map((dim) => (typeof dim === 'number' ? dim : -1));
  return { name, dtype, ...(dims === undefined || dims.length > 16 ? {} : { shape: dims }) };
}

function idsOf(cut: CutModel, features: TrainedFeatures | undefined): IdsSpec[] {
  const ports = new Map(cut.lookups.flatMap(({ ids }) => ids.map((port) => [port.name, port])));
  return [...ports.values()].map((port) => ({
    input: port.name,
    dtype: port.dtype as IdsSpec['dtype'],
    columns: rowElements(port),
    slots: features?.ids.find(({ input }) => input === port.name)?.slots ?? [],
    kept: cut.keptInputs.some(({ name }) => name === port.name),
  }));
}

/** What of features.json travels on: the ids inputs are gone from the graph. */
function toFeatureSpec({ ids: _, ...features }: TrainedFeatures): FeatureSpec {
  return features;
}

/** The slot of each key, or of each column that computed keys go back to. */
function slotsOf(lookup: CutLookup, features: TrainedFeatures | undefined): readonly string[] {
  if (features === undefined) return [];
  const slotOf = (input: string, column: number): string =>
    features.ids.find((ids) => ids.input === input)?.slots[column] ?? '';
  const columns = plainColumns(lookup);
  if (columns !== undefined) return columns.map((column) => slotOf(lookup.ids[0]!.name, column));
  const slots = new Set<string>();
  const queue: KeyExpression[] = [...lookup.keys].reverse();
  const seen = new Set<KeyExpression>();
  for (let key = queue.pop(); key !== undefined; key = queue.pop()) {
    if (seen.has(key)) continue;
    seen.add(key);
    if (key.op === 'column') slots.add(slotOf(key.input, key.column));
    else if (key.op !== 'int') queue.push(...[...key.of].reverse());
  }
  return [...slots];
}

function mismatch(what: string): never {
  throw new CubeError('INVALID_ARGUMENT', `features.json does not fit the model: ${what}`);
}

function list(values: Iterable<string>): string {
  const names = [...values].map((value) => JSON.stringify(value));
  const shown = names.slice(0, 8).join(', ');
  if (names.length === 0) return 'none';
  return names.length > 8 ? `${shown} and ${names.length - 8} more` : shown;
}

function checkIds(features: TrainedFeatures, cut: CutModel): void {
  const read = new Map(cut.lookups.flatMap(({ ids }) => ids.map((port) => [port.name, port])));
  const named = new Set<string>();
  for (const { input, slots } of features.ids) {
    const quoted = JSON.stringify(input);
    if (named.has(input)) mismatch(`its "ids" lists the input ${quoted} twice`);
    named.add(input);
    if (!inputNames(cut).includes(input)) {
      const inputs = list(inputNames(cut));
      mismatch(`its ids input ${quoted} is not an input of the model (those are ${inputs})`);
    }
    const value = read.get(input);
    if (value === undefined) {
      mismatch(`its ids input ${quoted} feeds no lookup (those that do are ${list(read.keys())})`);
    }
    const columns = rowElements(value);
    if (columns !== slots.length) {
      mismatch(
        `it gives ids input ${quoted} ${slots.length} slots, in the model it has ${columns}`,
      );
    }
  }
  for (const name of read.keys()) {
    if (!named.has(name)) {
      mismatch(
        `the model looks up ids of input ${JSON.stringify(name)}, its "ids" lists ${list(named)}`,
      );
    }
  }
  checkCover(features);
  checkOtherReaders(cut, named);
}

function inputNames({ inputs }: CutModel): string[] {
  return inputs.map(({ name }) => name);
}

/** Every slot belongs to exactly one column of one ids input. */
function checkCover(features: TrainedFeatures): void {
  const owners = new Map<string, string>();
  for (const { input, slots } of features.ids) {
    for (const slot of slots) {
      const owner = owners.get(slot);
      if (owner !== undefined) {
        mismatch(
          `slot ${slot} is in ids input ${JSON.stringify(owner)} and again in ${JSON.stringify(input)}`,
        );
      }
      owners.set(slot, input);
    }
  }
  const missing = features.slots.filter(({ name }) => !owners.has(name)).map(({ name }) => name);
  if (missing.length > 0) mismatch(`no ids input carries ${list(missing)}`);
}

/** Serving makes ids of integers: a graph that also needs ids as floats cannot be served from slots.json. */
function checkOtherReaders(cut: CutModel, ids: ReadonlySet<string>): void {
  const kept = cut.keptInputs.find(
    ({ name, dtype }) => ids.has(name) && !/^int(32|64)$/.test(dtype),
  );
  if (kept === undefined) return;
  throw new CubeError(
    'UNSUPPORTED',
    `cannot prune with features.json: the pruned model still needs the ids ${JSON.stringify(kept.name)} themselves as ${kept.dtype} (read by ${list(kept.readers)}), which cannot be served`,
  );
}

/** Rows are found by position, so an id that is hashed and not computed with must be below the number of rows. */
function checkHash({ hash }: TrainedFeatures, { tables, lookups }: CutModel): void {
  if (hash.scheme === 'raw' && hash.modulo === 0n) return;
  const direct = new Set(lookups.filter((l) => plainColumns(l)).map(({ table }) => table));
  const byPosition = tables.filter((t) => t.readKeys === undefined && t.isExternal !== true);
  for (const { source, rows } of byPosition.filter((table) => direct.has(table.source))) {
    if (hash.modulo === 0n || hash.modulo > BigInt(rows)) {
      const keys = hash.modulo === 0n ? 'unbounded keys (modulo 0)' : `modulo ${hash.modulo}`;
      mismatch(`its hash has ${keys}, table ${JSON.stringify(source)} has ${rows} rows`);
    }
  }
}

/** The dense input and the click output; the other inputs of the pruned graph must be fed by somebody. */
function checkRest(features: TrainedFeatures, cut: CutModel): void {
  const { dense, click } = features;
  const widths = new Map<string, number>();
  for (const { input = dense!.input } of dense?.features ?? []) {
    widths.set(input, (widths.get(input) ?? 0) + 1);
  }
  for (const [input, width] of widths) checkDense(input, width, cut);
  const known = new Set([...widths.keys(), ...features.ids.map(({ input }) => input)]);
  const others = cut.keptInputs.map(({ name }) => name).filter((name) => !known.has(name));
  if (others.length > 0) {
    mismatch(
      `the pruned model needs the inputs ${list(others)}, which features.json does not name`,
    );
  }
  const output = cut.outputs.find(({ name }) => name === click.output);
  if (output === undefined) {
    const outputs = list(cut.outputs.map(({ name }) => name));
    mismatch(
      `its click output ${JSON.stringify(click.output)} is not an output of the model (those are ${outputs})`,
    );
  }
  checkClickColumn(features, output.shape);
}

function checkDense(input: string, count: number, cut: CutModel): void {
  const quoted = JSON.stringify(input);
  const value = cut.keptInputs.find(({ name }) => name === input);
  if (value === undefined) {
    const inputs = list(cut.keptInputs.map(({ name }) => name));
    const why = inputNames(cut).includes(input)
      ? 'is not used by the pruned model'
      : 'is not an input of the model';
    mismatch(`its dense input ${quoted} ${why} (its dense inputs are ${inputs})`);
  }
  const [, width] = value.shape ?? [];
  if (!/^float(32|16)$/.test(value.dtype) || value.shape?.length !== 2) {
    const found = `${value.dtype} ${describeShape(value.shape)}`;
    mismatch(
      `its dense input ${quoted} is ${found} in the model, expected float32 [batch, ${count}]`,
    );
  }
  if (width !== count) {
    const columns = width ?? 'an unknown number';
    mismatch(
      `it has ${count} dense features, the input ${quoted} of the model has ${columns} columns`,
    );
  }
}

function describeShape(shape: readonly Dim[] | undefined): string {
  return shape === undefined
    ? 'of unknown shape'
    : `[${shape.map((dim) => dim ?? '?').join(', ')}]`;
}

/** @param shape of the click output: declared, or found by a run, where every dim is known */
export function checkClickColumn(
  features: TrainedFeatures,
  shape: readonly Dim[] | undefined,
): void {
  const { output, column } = features.click;
  const width = shape?.length === 1 ? 1 : shape?.at(-1);
  const isMatrix = shape === undefined || shape.length === 1 || shape.length === 2;
  if (isMatrix && (typeof width !== 'number' || column < width)) return;
  mismatch(
    `its click column ${column} is outside the output ${JSON.stringify(output)} ${describeShape(shape)}`,
  );
}
