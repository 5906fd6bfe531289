/**
 * slots.json: what prune-model writes beside the pruned graph about its inputs: from which table
 * each new input takes its rows, how keys are computed from ids, and the feature spec of
 * features.json (feature-spec.ts). Drawn in docs/formats/slots.md.
 */

import { CubeError } from './errors.ts';
import {
  type FeatureSpec,
  featureSpecToJson,
  readFeatureSpec,
  requireDistinct,
} from './feature-spec.ts';
import type { JsonReader } from './json.ts';
import {
  type KeyExpression,
  KeyExpressionReader,
  type KeyMap,
  keyExpressionToJson,
  keyMapToJson,
  readKeyMap,
} from './key-expression.ts';
import { NAME_PATTERN, NAME_RULE } from './names.ts';

export * from './feature-spec.ts';

/**
 * A new input of the pruned graph: rows of `table`, one per slot, f32 of shape `shape` (-1 =
 * batch).
 */
export interface EmbeddingInput {
  readonly input: string;
  readonly table: string;
  readonly dim: number;
  readonly dtype: 'f32';
  readonly shape: readonly number[];
  /** Slot names in column order; empty when the model was pruned without features.json. */
  readonly slots: readonly string[];
  /** The ids input of the unpruned graph that this lookup read; the first one of several. */
  readonly ids: string;
  /** The columns of that input that are the keys of a row; absent when the keys are computed. */
  readonly columns?: readonly number[];
  /** How each key of a row is computed from ids; absent when the keys are plain columns. */
  readonly keys?: readonly KeyExpression[];
  /** Set when the input takes one row per bag of ids: their sum or mean, zeros for an empty bag. */
  readonly bags?: BagSpec;
  /** A key whose row does not count in a bag, or is zeros. */
  readonly paddingId?: number;
  /** 1: the ids of a row are a sequence of any length, and the input takes one row for each. */
  readonly lodLevel?: number;
  /**
   * The axes of the keys: those of `shape` before the row. A negative number is an axis of any
   * size; equal ones are the same axis, also in `ids`. Present in models that take tensors.
   */
  readonly axes?: readonly number[];
}

export interface BagSpec {
  readonly pooling: 'sum' | 'mean';
  /** The input of the unpruned graph with the start of each bag in the list of ids. */
  readonly offsets: string;
  /** The row of that input, when it holds the offsets of several lists. */
  readonly offsetsRow?: number;
  /** True when the last offset is the end of the last bag. */
  readonly includesLast: boolean;
}

/** An ids input of the unpruned graph. */
export interface IdsSpec {
  readonly input: string;
  readonly dtype: 'int64' | 'int32' | 'float32' | 'float64';
  /** Elements in a row. */
  readonly columns: number;
  /** The slot of each element; empty when the model was pruned without features.json. */
  readonly slots: readonly string[];
  /** True when the pruned graph still has this input. */
  readonly kept: boolean;
  /** Its axes, numbered as those of embeddings are. */
  readonly axes?: readonly number[];
}

/** An input or output of the pruned graph. */
export interface GraphPort {
  readonly name: string;
  readonly dtype: string;
  /** -1: the batch, or an open length. Absent: the rank is unknown too. */
  readonly shape?: readonly number[];
}

/** Inputs of the pruned graph other than embeddings and whole ids, and its outputs. */
export interface GraphSpec {
  /** Includes float inputs that also hold ids. */
  readonly inputs: readonly GraphPort[];
  readonly outputs: readonly GraphPort[];
}

export interface PrunedTable {
  readonly name: string;
  readonly rows: number;
  readonly dim: number;
  readonly dtype: 'f32';
  /** True when the model did not contain its rows: `rows` is 0, and there is no file. */
  readonly external?: boolean;
  /** True when rows have keys of their own instead of their numbers. */
  readonly keyed?: boolean;
}

export interface SlotSpec {
  readonly embeddings: readonly EmbeddingInput[];
  readonly tables: readonly PrunedTable[];
  /** The ids inputs of the unpruned graph; absent in files of earlier builds. */
  readonly ids?: readonly IdsSpec[];
  /** Integer constants that keys go through. */
  readonly maps?: readonly KeyMap[];
  /** Absent in files of earlier builds. */
  readonly graph?: GraphSpec;
  /** Undefined when the model was pruned without features.json: it takes keys, not features. */
  readonly features: FeatureSpec | undefined;
}

const SLOTS_FORMAT = 1;
const SPEC_FIELDS = ['format', 'embeddings', 'tables', 'ids', 'maps', 'graph', 'features'];
const TABLE_FIELDS = ['name', 'rows', 'dim', 'dtype', 'external', 'keyed'];
const IDS_FIELDS = ['input', 'dtype', 'columns', 'slots', 'kept', 'axes'];
const BAG_FIELDS = ['pooling', 'offsets', 'offsetsRow', 'includesLast'];
const EMBEDDING_FIELDS = [
  'input',
  'table',
  'dim',
  'dtype',
  'shape',
  'slots',
  'ids',
  'columns',
  'keys',
  'bags',
  'paddingId',
  'lodLevel',
  'axes',
];

/** Reads slots.json. @throws CubeError INVALID_ARGUMENT naming the field */
export function readSlotSpec(json: JsonReader): SlotSpec {
  json.field('format').integer(SLOTS_FORMAT, SLOTS_FORMAT);
  json.rejectUnknownFields(SPEC_FIELDS);
  const tables = readTables(json);
  const features = json.optional('features', (f) => readFeatureSpec(f));
  const slotNames = new Set(features?.slots.map((slot) => slot.name));
  const ids = json.optional('ids', (f) => readIds(f, slotNames));
  const maps = json.optional('maps', (f) => f.items({ max: 1000 }).map(readKeyMap));
  const expressions = new KeyExpressionReader(
    new Map(ids?.map(({ input, columns }) => [input, columns])),
    new Set(maps?.map(({ name }) => name)),
  );
  const graph = json.optional('graph', (f) => {
    f.rejectUnknownFields(['inputs', 'outputs']);
    return { inputs: readPorts(f.field('inputs')), outputs: readPorts(f.field('outputs')) };
  });
  const tableNames = new Set(tables.map((table) => table.name));
  const embeddings = json
    .field('embeddings')
    .items({ max: 100_000 })
    .map((item) => readEmbedding(item, { tableNames, slotNames, expressions }));
  return {
    embeddings,
    tables,
    ...(ids === undefined ? {} : { ids }),
    ...(maps === undefined ? {} : { maps }),
    ...(graph === undefined ? {} : { graph }),
    features,
  };
}

function readTables(json: JsonReader): PrunedTable[] {
  const tables = json.field('tables').items({ max: 100_000 }).map(readTable);
  requireDistinct(
    json,
    'tables',
    tables.map((table) => table.name),
  );
  return tables;
}

function readTable(item: JsonReader): PrunedTable {
  item.rejectUnknownFields(TABLE_FIELDS);
  return {
    name: item.field('name').string(NAME_PATTERN, NAME_RULE),
    rows: item.field('rows').integer(0),
    dim: item.field('dim').integer(1, 1 << 20),
    dtype: item.field('dtype').choice(['f32'] as const),
    ...(item.optional('external', (f) => f.boolean()) === true ? { external: true } : {}),
    ...(item.optional('keyed', (f) => f.boolean()) === true ? { keyed: true } : {}),
  };
}

function readSlotNames(json: JsonReader, known: ReadonlySet<string>): string[] {
  return json.items({ max: 100_000 }).map((slot) => {
    const name = slot.string();
    if (!known.has(name)) slot.fail('the name of a slot listed under "features.slots"');
    return name;
  });
}

function readIds(json: JsonReader, slotNames: ReadonlySet<string>): IdsSpec[] {
  return json.items({ max: 10_000 }).map((item) => {
    item.rejectUnknownFields(IDS_FIELDS);
    const axes = item.optional('axes', readAxes);
    return {
      input: item.field('input').string(),
      dtype: item.field('dtype').choice(['int64', 'int32', 'float32', 'float64']),
      columns: item.field('columns').integer(1, 100_000),
      slots: readSlotNames(item.field('slots'), slotNames),
      kept: item.field('kept').boolean(),
      ...(axes === undefined ? {} : { axes }),
    };
  });
}

function readAxes(json: JsonReader): number[] {
  return json.items({ max: 16 }).map((axis) => {
    const size = axis.integer(-1_000);
    return size === 0 ? axis.fail('a size, or the negative number of an axis') : size;
  });
}

function readPorts(json: JsonReader): GraphPort[] {
  return json.items({ max: 10_000 }).map((item) => {
    item.rejectUnknownFields(['name', 'dtype', 'shape']);
    const shape = item.optional('shape', (f) => f.items({ max: 16 }).map((dim) => dim.integer(-1)));
    return {
      name: item.field('name').string(),
      dtype: item.field('dtype').string(),
      ...(shape === undefined ? {} : { shape }),
    };
  });
}

interface EmbeddingNames {
  readonly tableNames: ReadonlySet<string>;
  readonly slotNames: ReadonlySet<string>;
  readonly expressions: KeyExpressionReader;
}

function readBags(json: JsonReader): BagSpec {
  json.rejectUnknownFields(BAG_FIELDS);
  const offsetsRow = json.optional('offsetsRow', (f) => f.integer(0));
  return {
    pooling: json.field('pooling').choice(['sum', 'mean'] as const),
    offsets: json.field('offsets').string(),
    ...(offsetsRow === undefined ? {} : { offsetsRow }),
    includesLast: json.field('includesLast').boolean(),
  };
}

function readEmbedding(item: JsonReader, known: EmbeddingNames): EmbeddingInput {
  item.rejectUnknownFields(EMBEDDING_FIELDS);
  const table = item.field('table').string();
  if (!known.tableNames.has(table)) {
    item.field('table').fail('the name of a table listed under "tables"');
  }
  const columns = item.optional('columns', (f) =>
    f.items({ min: 1, max: 100_000 }).map((column) => column.integer(0)),
  );
  const keys = item.optional('keys', (f) =>
    f.items({ min: 1, max: 100_000 }).map((key) => known.expressions.read(key)),
  );
  const bags = item.optional('bags', readBags);
  const paddingId = item.optional('paddingId', (f) => f.integer(0));
  const lodLevel = item.optional('lodLevel', (f) => f.integer(0, 1));
  const axes = item.optional('axes', readAxes);
  return {
    input: item.field('input').string(),
    table,
    dim: item.field('dim').integer(1, 1 << 20),
    dtype: item.field('dtype').choice(['f32']),
    shape: item
      .field('shape')
      .items({ min: 1, max: 16 })
      .map((d) => d.integer(-1)),
    slots: readSlotNames(item.field('slots'), known.slotNames),
    ids: item.field('ids').string(),
    ...(columns === undefined ? {} : { columns }),
    ...(keys === undefined ? {} : { keys }),
    ...(bags === undefined ? {} : { bags }),
    ...(paddingId === undefined ? {} : { paddingId }),
    ...(lodLevel === undefined ? {} : { lodLevel }),
    ...(axes === undefined ? {} : { axes }),
  };
}

/** The JSON form of a slot spec: 64-bit numbers as decimal strings, fields in a fixed order. */
export function slotSpecToJson(spec: SlotSpec): unknown {
  return {
    format: SLOTS_FORMAT,
    embeddings: spec.embeddings.map((embedding) =>
      embedding.keys === undefined
        ? embedding
        : { ...embedding, keys: embedding.keys.map(keyExpressionToJson) },
    ),
    tables: spec.tables,
    ...(spec.ids === undefined ? {} : { ids: spec.ids }),
    ...(spec.maps === undefined ? {} : { maps: spec.maps.map(keyMapToJson) }),
    ...(spec.graph === undefined ? {} : { graph: spec.graph }),
    ...(spec.features === undefined ? {} : { features: featureSpecToJson(spec.features) }),
  };
}

/**
 * Whether requests to the model are tensors of the unpruned graph, because rows of features cannot
 * express them: it was pruned without features.json, and has sequences of any length, or inputs
 * besides ids that are not float [batch, features].
 */
export function takesTensors({
  features,
  embeddings,
  graph,
}: Pick<SlotSpec, 'features' | 'embeddings' | 'graph'>): boolean {
  if (features !== undefined || graph === undefined) return false;
  if (embeddings.some(({ bags, lodLevel = 0 }) => bags !== undefined || lodLevel > 0)) return false;
  const isFeatures = ({ dtype, shape = [] }: GraphPort): boolean =>
    /^float(32|16)$/.test(dtype) && shape.length === 2 && shape[1]! > 0;
  return (
    embeddings.some(({ shape }) => shape.slice(1).includes(-1)) || !graph.inputs.every(isFeatures)
  );
}

type BagInput = Pick<EmbeddingInput, 'input' | 'slots' | 'bags'>;

/**
 * Adds to each slot the pooling of the graph input that takes its values as bags.
 * @throws CubeError INVALID_ARGUMENT when a slot has another pooling, from features.json or another
 * input
 */
export function withBagPooling(spec: FeatureSpec, inputs: readonly BagInput[]): FeatureSpec {
  const poolings = new Map(spec.slots.map(({ name, pooling }) => [name, pooling]));
  for (const { input, slots, bags } of inputs) {
    if (bags === undefined) continue;
    for (const slot of slots) {
      const known = poolings.get(slot);
      if (known !== undefined && known !== bags.pooling) {
        throw new CubeError(
          'INVALID_ARGUMENT',
          `slot ${slot}: its pooling is ${known}, but the graph's input ${JSON.stringify(input)} ` +
            `takes the ${bags.pooling} of its bags`,
        );
      }
      poolings.set(slot, bags.pooling);
    }
  }
  const filled = spec.slots.find(
    ({ name, missing }) => missing !== undefined && poolings.get(name),
  );
  if (filled !== undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `slot ${filled.name}: it has a value for missing ones, but the graph takes bags of its ` +
        'values, which may be empty; remove "missing"',
    );
  }
  const slots = spec.slots.map((slot) => {
    const pooling = poolings.get(slot.name);
    return pooling === undefined ? slot : { ...slot, pooling };
  });
  return { ...spec, slots };
}
