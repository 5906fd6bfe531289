/**
 * Builds slots.json: which input of the pruned graph takes rows of which table for which slots.
 * With features.json, the description by the training script is first checked against the graph.
 */

import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import type {
  EmbeddingInput,
  FeatureSpec,
  GraphPort,
  IdsSpec,
  PrunedTable,
  SlotSpec,
  TrainedFeatures,
} from '../../lib/core/slots.ts';
import { takesTensors, withBagPooling } from '../../lib/core/slots.ts';
import {
  describeShape,
  findBagOfIds,
  findLargeModulo,
  findOutsideColumn,
} from '../../lib/features/feature-checks.ts';
import {
  type Axis,
  type CutLookup,
  type CutModel,
  countRowElements,
  type Dim,
  findPlainColumns,
  type TensorInfo,
  walkExpressions,
} from './cut/cut-model.ts';

/** @throws CubeError INVALID_ARGUMENT when features.json and the graph do not match */
export function buildSlotSpec(cut: CutModel, features: TrainedFeatures | undefined): SlotSpec {
  if (features !== undefined) {
    checkIds(features, cut);
    checkDenseAndClick(features, cut);
  }
  const tables = new Map(cut.tables.map((table) => [table.source, table]));
  const embeddings = cut.lookups.map((lookup): EmbeddingInput => {
    const table = requireDefined(tables.get(lookup.table), 'the table of a lookup');
    const columns = findPlainColumns(lookup);
    const { bags, paddingId, lodLevel } = lookup;
    return {
      input: lookup.input,
      table: table.name,
      dim: table.dim,
      dtype: 'f32',
      shape: lookup.shape.map((dim) => (typeof dim === 'number' ? dim : -1)),
      slots: findSlots(lookup, features),
      ids: getFirstIds(lookup),
      ...(columns === undefined ? { keys: lookup.keys } : { columns }),
      ...(bags === undefined ? {} : { bags }),
      ...(paddingId === undefined ? {} : { paddingId }),
      ...(lodLevel === undefined ? {} : { lodLevel }),
    };
  });
  const graph = {
    inputs: cut.keptInputs
      .filter(({ name, dtype }) => !isIdsInput(cut, name) || !/^int(32|64)$/.test(dtype))
      .map(toGraphPort),
    outputs: cut.outputs.map(toGraphPort),
  };
  const inputs = { embeddings, ids: buildIdsSpecs(cut, features) };
  const hasAxes = takesTensors({ features: undefined, embeddings, graph });
  const tableSpecs = cut.tables.map(toTableSpec);
  const known = features && withBagPooling(toFeatureSpec(features), embeddings);
  const problem =
    known &&
    (findLargeModulo(known, { embeddings, tables: tableSpecs }) ?? findBagOfIds(known, inputs.ids));
  if (problem !== undefined) mismatch(problem);
  return {
    ...(features === undefined && hasAxes ? addAxes(inputs, cut) : inputs),
    tables: tableSpecs,
    ...(cut.maps.length === 0 ? {} : { maps: cut.maps }),
    graph,
    features: known,
  };
}

function toTableSpec({
  name,
  rows,
  dim,
  isExternal,
  readKeys,
}: CutModel['tables'][number]): PrunedTable {
  return {
    name,
    rows,
    dim,
    dtype: 'f32' as const,
    ...(isExternal === true ? { external: true } : {}),
    ...(readKeys === undefined ? {} : { keyed: true }),
  };
}

/** Adds the axes of keys and ids, each open one with a number: -1, -2, ... */
function addAxes(
  { embeddings, ids }: Required<Pick<SlotSpec, 'embeddings' | 'ids'>>,
  { lookups }: CutModel,
): Required<Pick<SlotSpec, 'embeddings' | 'ids'>> {
  const numbers = new Map<string, number>();
  const number = (axis: Axis): number => {
    if (typeof axis === 'number') return axis;
    const known = numbers.get(axis) ?? -1 - numbers.size;
    numbers.set(axis, known);
    return known;
  };
  const axesByIds = new Map(
    lookups.flatMap((lookup) =>
      lookup.ids.map(({ name }, i): [string, readonly Axis[] | undefined] => [
        name,
        lookup.idsAxes?.[i],
      ]),
    ),
  );
  return {
    ids: ids.map((port) => {
      const axes = axesByIds.get(port.input)?.map(number);
      return axes === undefined ? port : { ...port, axes };
    }),
    embeddings: embeddings.map((embedding, i) => {
      const axes = lookups[i]?.axes?.map(number);
      return axes === undefined ? embedding : { ...embedding, axes };
    }),
  };
}

function isIdsInput({ lookups }: CutModel, input: string): boolean {
  return lookups.some(({ ids }) => ids.some(({ name }) => name === input));
}

function toGraphPort({ name, dtype, shape }: TensorInfo): GraphPort {
  const dims = shape?.map((dim) => (typeof dim === 'number' ? dim : -1));
  return { name, dtype, ...(dims === undefined || dims.length > 16 ? {} : { shape: dims }) };
}

function buildIdsSpecs(cut: CutModel, features: TrainedFeatures | undefined): IdsSpec[] {
  const ports = new Map(cut.lookups.flatMap(({ ids }) => ids.map((port) => [port.name, port])));
  return [...ports.values()].map((port) => ({
    input: port.name,
    dtype: port.dtype as IdsSpec['dtype'],
    columns: countRowElements(port),
    slots: features?.ids.find(({ input }) => input === port.name)?.slots ?? [],
    kept: cut.keptInputs.some(({ name }) => name === port.name),
  }));
}

/** The part of features.json that slots.json keeps; the pruned graph has no ids inputs. */
function toFeatureSpec({ ids: _, ...features }: TrainedFeatures): FeatureSpec {
  return features;
}

/** The name of the first input that keys are computed from. */
function getFirstIds({ ids: [first] }: CutLookup): string {
  return requireDefined(first, 'the ids of a lookup').name;
}

/** The slot of each key, or of each column that computed keys read. */
function findSlots(lookup: CutLookup, features: TrainedFeatures | undefined): readonly string[] {
  if (features === undefined) return [];
  const getSlot = (input: string, column: number): string =>
    features.ids.find((ids) => ids.input === input)?.slots[column] ?? '';
  const columns = findPlainColumns(lookup);
  if (columns !== undefined) {
    const input = getFirstIds(lookup);
    return columns.map((column) => getSlot(input, column));
  }
  const slots = new Set<string>();
  for (const key of walkExpressions(lookup.keys)) {
    if (key.op === 'column') slots.add(getSlot(key.input, key.column));
  }
  return [...slots];
}

function mismatch(what: string): never {
  throw new CubeError('INVALID_ARGUMENT', `features.json does not match the model: ${what}`);
}

function formatNames(values: Iterable<string>): string {
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
    if (!getInputNames(cut).includes(input)) {
      const inputs = formatNames(getInputNames(cut));
      mismatch(`its ids input ${quoted} is not an input of the model (its inputs are ${inputs})`);
    }
    const value = read.get(input);
    if (value === undefined) {
      mismatch(`its ids input ${quoted} feeds no lookup (${formatNames(read.keys())} do)`);
    }
    const columns = countRowElements(value);
    if (columns !== slots.length) {
      mismatch(
        `it lists ${slots.length} slots for ids input ${quoted}, which has ${columns} ` +
          'columns in the model',
      );
    }
  }
  for (const name of read.keys()) {
    if (!named.has(name)) {
      mismatch(
        `the model looks up ids of input ${JSON.stringify(name)}, but its "ids" lists ` +
          `${formatNames(named)}`,
      );
    }
  }
  checkSlotCoverage(features);
  checkRemainingReaders(cut, named);
}

function getInputNames({ inputs }: CutModel): string[] {
  return inputs.map(({ name }) => name);
}

/** Checks that every slot belongs to exactly one column of one ids input. */
function checkSlotCoverage(features: TrainedFeatures): void {
  const owners = new Map<string, string>();
  for (const { input, slots } of features.ids) {
    for (const slot of slots) {
      const owner = owners.get(slot);
      if (owner !== undefined) {
        mismatch(
          `slot ${slot} is in ids input ${JSON.stringify(owner)} and again in ` +
            `${JSON.stringify(input)}`,
        );
      }
      owners.set(slot, input);
    }
  }
  const missing = features.slots.filter(({ name }) => !owners.has(name)).map(({ name }) => name);
  if (missing.length > 0) mismatch(`no ids input contains the slots ${formatNames(missing)}`);
}

/** Refuses graphs that also need ids as floats: serving computes integer ids only. */
function checkRemainingReaders(cut: CutModel, ids: ReadonlySet<string>): void {
  const kept = cut.keptInputs.find(
    ({ name, dtype }) => ids.has(name) && !/^int(32|64)$/.test(dtype),
  );
  if (kept === undefined) return;
  throw new CubeError(
    'UNSUPPORTED',
    `cannot prune with features.json: the pruned model still reads the ids input ` +
      `${JSON.stringify(kept.name)} as ${kept.dtype} (in ${formatNames(kept.readers)}), ` +
      'which cannot ' +
      'be served; give the model separate inputs for ids and dense values',
  );
}

/** Checks the dense inputs and the click output, and that no other input remains. */
function checkDenseAndClick(features: TrainedFeatures, cut: CutModel): void {
  const { dense, click } = features;
  const widths = new Map<string, number>();
  if (dense !== undefined) {
    for (const { input = dense.input } of dense.features) {
      widths.set(input, (widths.get(input) ?? 0) + 1);
    }
  }
  for (const [input, width] of widths) checkDense(input, width, cut);
  const known = new Set([...widths.keys(), ...features.ids.map(({ input }) => input)]);
  const others = cut.keptInputs.map(({ name }) => name).filter((name) => !known.has(name));
  if (others.length > 0) {
    mismatch(
      `the pruned model needs the inputs ${formatNames(others)}, which features.json does not list`,
    );
  }
  const output = cut.outputs.find(({ name }) => name === click.output);
  if (output === undefined) {
    const outputs = formatNames(cut.outputs.map(({ name }) => name));
    mismatch(
      `its click output ${JSON.stringify(click.output)} is not an output of the model (its ` +
        `outputs are ${outputs})`,
    );
  }
  checkClickColumn(features, output.shape);
}

function checkDense(input: string, count: number, cut: CutModel): void {
  const quoted = JSON.stringify(input);
  const value = cut.keptInputs.find(({ name }) => name === input);
  if (value === undefined) {
    const inputs = formatNames(cut.keptInputs.map(({ name }) => name));
    const problem = getInputNames(cut).includes(input)
      ? 'is not used by the pruned model'
      : 'is not an input of the model';
    mismatch(`its dense input ${quoted} ${problem} (its dense inputs are ${inputs})`);
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
      `it has ${count} dense features, but the input ${quoted} of the model has ${columns} columns`,
    );
  }
}

/** @param shape of the click output: as declared, or from a run, where every dim is known */
export function checkClickColumn(
  features: TrainedFeatures,
  shape: readonly Dim[] | undefined,
): void {
  const problem = findOutsideColumn(features.click, shape);
  if (problem !== undefined) mismatch(problem);
}
