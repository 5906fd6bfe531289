/**
 * Drafts features.json from a model: everything that the graph says is filled in, and `$comment`
 * lists what only the training script knows.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { NAME_PATTERN } from '../../../lib/core/names.ts';
import type { DenseInput, IdsInput, Slot } from '../../../lib/core/slots.ts';
import {
  type CutLookup,
  type CutModel,
  countRowElements,
  type TensorInfo,
  walkExpressions,
} from '../cut/cut-model.ts';

/** features.json as it is written; see docs/formats/slots.md. */
export interface FeaturesDraft {
  readonly format: 1;
  readonly $comment: readonly string[];
  readonly hash: { readonly scheme: 'raw' };
  readonly slots: readonly Slot[];
  readonly dense?: { readonly input: string; readonly features: readonly DraftFeature[] };
  readonly click: { readonly output: string; readonly column: number };
  readonly ids: readonly IdsInput[];
}

type DraftFeature = Pick<DenseInput['features'][number], 'name' | 'input'>;

/** Closes the model. @throws CubeError UNSUPPORTED when it has no lookups or no float output */
export function draftFeatures(cut: CutModel): FeaturesDraft {
  try {
    const ids = findIdsInputs(cut).map((port) => ({ port, names: nameColumns(port) }));
    const slots = ids.flatMap(({ port, names }) =>
      names.map((name, column) => draftSlot(cut, name, port, column)),
    );
    const dense = draftDense(cut, new Set(ids.map(({ port }) => port.name)));
    const { click, note } = draftClick(cut.outputs);
    return {
      format: 1,
      $comment: [
        ...describeTables(cut, ids),
        'hash: with scheme "raw" a feature is the row number of its table, as in training; if ' +
          'training hashes strings, give scheme and seed (docs/formats/keys.md), and the modulo: ' +
          'in hash, or in each slot if tables differ in size',
        'slots: give each slot the name that requests use, and the index that training hashes; ' +
          'ids names the slot of each column; missing and side are optional ' +
          '(docs/formats/slots.md)',
        ...(dense === undefined
          ? []
          : ['dense: give each feature its name, and missing, log, shift and scale of training']),
        note,
      ],
      hash: { scheme: 'raw' },
      slots: slots.map(({ name, ...slot }, index) => ({ name, index, ...slot })),
      ...(dense === undefined ? {} : { dense }),
      click,
      ids: ids.map(({ port, names }) => ({ input: port.name, slots: names })),
    };
  } finally {
    cut.close();
  }
}

function findIdsInputs({ lookups }: CutModel): TensorInfo[] {
  const ports = new Map(lookups.flatMap(({ ids }) => ids.map((port) => [port.name, port])));
  return [...ports.values()];
}

/** A name for each column of an input: the input's own name when it has one. */
function nameColumns(port: TensorInfo): string[] {
  const name = port.name.replaceAll(/[^A-Za-z0-9_-]/g, '_').slice(0, 100);
  const base = NAME_PATTERN.test(name) ? name : `ids_${name}`;
  const columns = countRowElements(port);
  if (columns === 1) return [base];
  return Array.from({ length: columns }, (_, column) => `${base}_${column + 1}`);
}

function draftSlot(
  { lookups }: CutModel,
  name: string,
  port: TensorInfo,
  column: number,
): Omit<Slot, 'index'> {
  const bags = lookups.find((lookup) => readsColumn(lookup, port, column))?.bags;
  return { name, ...(bags === undefined ? {} : { pooling: bags.pooling }) };
}

function readsColumn(lookup: CutLookup, port: TensorInfo, column: number): boolean {
  return [...walkExpressions(lookup.keys)].some(
    (key) => key.op === 'column' && key.input === port.name && key.column === column,
  );
}

/** The slots of each table, with its size: ids must be below the number of rows. */
function describeTables(
  { lookups, tables }: CutModel,
  ids: readonly { readonly port: TensorInfo; readonly names: readonly string[] }[],
): string[] {
  return tables.map(({ name, source, rows, dim }) => {
    const readers = lookups.filter(({ table }) => table === source);
    const slots = ids.flatMap(({ port, names }) =>
      names.filter((_, column) => readers.some((lookup) => readsColumn(lookup, port, column))),
    );
    const listed = slots.length > 8 ? `${slots.slice(0, 8).join(', ')}, …` : slots.join(', ');
    return `table ${name}: ${rows} rows of ${dim} numbers, for ${listed}`;
  });
}

function draftDense({ keptInputs }: CutModel, ids: ReadonlySet<string>): FeaturesDraft['dense'] {
  const inputs = keptInputs.filter(
    ({ name, dtype }) => !ids.has(name) && /^float(16|32)$/.test(dtype),
  );
  const [first] = inputs;
  if (first === undefined) return undefined;
  const features = inputs.flatMap((port) =>
    nameColumns(port).map((name) => {
      return { name, ...(port === first ? {} : { input: port.name }) };
    }),
  );
  return { input: first.name, features };
}

/** Two values in a row are the probabilities of no click and of a click. */
function draftClick(outputs: readonly TensorInfo[]): Pick<FeaturesDraft, 'click'> & {
  readonly note: string;
} {
  const floats = outputs.filter(({ dtype }) => /^float(16|32)$/.test(dtype));
  const [port] = floats;
  if (port === undefined) {
    throw new CubeError('UNSUPPORTED', 'the model has no float output that could be the score');
  }
  const width = countRowElements(port);
  const others = floats.slice(1).map(({ name }) => JSON.stringify(name));
  const values = width === 1 ? '1 value' : `${width} values`;
  const what = `click: output ${JSON.stringify(port.name)} has ${values} in a row`;
  const alternatives = others.length === 0 ? '' : `; other outputs: ${others.join(', ')}`;
  return {
    click: { output: port.name, column: width === 2 ? 1 : 0 },
    note: `${what}; column says which is the click probability${alternatives}`,
  };
}

/** One slot, feature or comment per line. */
export function formatFeatures(draft: FeaturesDraft): string {
  const fields = Object.entries(draft).map(([name, value]) => {
    return `  ${JSON.stringify(name)}: ${formatValue(value, '  ')}`;
  });
  return `{\n${fields.join(',\n')}\n}\n`;
}

function formatValue(value: unknown, indent: string): string {
  const inner = `${indent}  `;
  if (Array.isArray(value)) {
    return `[\n${value.map((item) => `${inner}${JSON.stringify(item)}`).join(',\n')}\n${indent}]`;
  }
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (!Object.values(value).some(Array.isArray)) return JSON.stringify(value);
  const fields = Object.entries(value).map(
    ([name, item]) => `${inner}${JSON.stringify(name)}: ${formatValue(item, inner)}`,
  );
  return `{\n${fields.join(',\n')}\n${indent}}`;
}
