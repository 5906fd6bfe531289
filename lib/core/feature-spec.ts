/**
 * What a model expects of its features. `features.json` is written by the training script beside the model: it says which ids
 * input carries which slot, how a feature becomes a key, how the dense features are scaled, and which output is the click
 * probability. The same travels on in slots.json. Both are drawn in docs/formats/slots.md.
 */
import type { JsonReader } from './json.ts';
import { NAME_PATTERN, NAME_RULE } from './names.ts';

export const HASH_SCHEMES = ['xxh64-concat', 'xxh64-tagged', 'raw'] as const;

/** How a feature string of a slot becomes a key (docs/formats/keys.md). */
export interface HashSpec {
  readonly scheme: (typeof HASH_SCHEMES)[number];
  readonly seed: bigint;
  /** 0: the hash is the key; otherwise key = hash mod modulo. */
  readonly modulo: bigint;
}

/** How the rows of a slot's values become one row; sqrtn: their sum over the square root of their number. */
export const POOLINGS = ['sum', 'mean', 'sqrtn', 'max'] as const;
export type Pooling = (typeof POOLINGS)[number];

/** A categorical field; `index` enters the hash. */
export interface Slot {
  readonly name: string;
  readonly index: number;
  /** Set when a row has any number of values of it; absent: exactly one, missing or not. */
  readonly pooling?: Pooling;
  /** What no value at all gives; zeros when absent. */
  readonly emptyBag?: EmptyBag;
}

const EMPTY_BAGS = ['zeros', 'default'] as const;
/** `default`: the table's default row. */
export type EmptyBag = (typeof EMPTY_BAGS)[number];

/** A dense feature: x = missing when empty; then ln(1 + max(x, 0)) when log; then (x − shift) · scale, to f32. */
export interface DenseFeature {
  readonly name: string;
  /** The input of the graph that takes it, when it is another than most take. */
  readonly input?: string;
  readonly missing: number;
  readonly log: boolean;
  readonly shift: number;
  readonly scale: number;
}

export interface DenseInput {
  readonly input: string;
  /** In the order of a row's values; those of one input in the order of its columns. */
  readonly features: readonly DenseFeature[];
}

/** Which output holds the click probability: element `column` of each row. */
export interface ClickOutput {
  readonly output: string;
  readonly column: number;
}

export interface FeatureSpec {
  readonly hash: HashSpec;
  /** In the order of a row's categorical values. */
  readonly slots: readonly Slot[];
  readonly dense: DenseInput | undefined;
  readonly click: ClickOutput;
  /** What stands between the values of a pooled slot in a line of text; absent: a line has one value of it, or none. */
  readonly separator?: string;
}

/** An ids input of the full graph: shape [batch] or [batch, 1] for one slot, [batch, slots] for several. */
export interface IdsInput {
  readonly input: string;
  readonly slots: readonly string[];
}

export interface TrainedFeatures extends FeatureSpec {
  readonly ids: readonly IdsInput[];
}

const FEATURES_FORMAT = 1;

function readHash(json: JsonReader): HashSpec {
  return {
    scheme: json.field('scheme').oneOf(HASH_SCHEMES),
    seed: json.optional('seed', (f) => f.u64()) ?? 0n,
    modulo: json.optional('modulo', (f) => f.u64()) ?? 0n,
  };
}

function readDense(json: JsonReader): DenseInput {
  const features = json
    .field('features')
    .items({ min: 1, max: 10_000 })
    .map((item) => ({
      name: item.field('name').string(),
      ...optionalInput(item),
      missing: item.optional('missing', (f) => f.number()) ?? 0,
      log: item.optional('log', (f) => f.boolean()) ?? false,
      shift: item.optional('shift', (f) => f.number()) ?? 0,
      scale: item.optional('scale', (f) => f.number()) ?? 1,
    }));
  requireDistinct(
    json,
    'features',
    features.map((feature) => feature.name),
  );
  return { input: json.field('input').string(), features };
}

function optionalInput(item: JsonReader): { input?: string } {
  const input = item.optional('input', (f) => f.string());
  return input === undefined ? {} : { input };
}

export function readFeatureSpec(json: JsonReader): FeatureSpec {
  const slotItems = json.field('slots').items({ min: 1, max: 10_000 });
  const slots = slotItems.map(readSlot);
  requireDistinct(
    json,
    'slots',
    slots.map((slot) => slot.name),
  );
  const click = json.field('click');
  const separator = json.optional('separator', (f) => f.string(/^[^\t\r\n]$/u, 'one character'));
  return {
    hash: readHash(json.field('hash')),
    slots,
    dense: json.optional('dense', readDense),
    click: {
      output: click.field('output').string(),
      column: click.field('column').integer(0, 1_000_000),
    },
    ...(separator === undefined ? {} : { separator }),
  };
}

function readSlot(item: JsonReader): Slot {
  const pooling = item.optional('pooling', (f) => f.oneOf(POOLINGS));
  const emptyBag = item.optional('emptyBag', (f) => f.oneOf(EMPTY_BAGS));
  if (emptyBag !== undefined && pooling === undefined) {
    item.field('pooling').fail(`one of ${POOLINGS.join(', ')}, since the slot has an emptyBag`);
  }
  return {
    name: item.field('name').string(NAME_PATTERN, NAME_RULE),
    index: item.field('index').integer(0, 0xffff_ffff),
    ...(pooling === undefined ? {} : { pooling }),
    ...(emptyBag === undefined ? {} : { emptyBag }),
  };
}

/** Reads features.json. @throws CubeError INVALID_ARGUMENT naming the field */
export function readTrainedFeatures(json: JsonReader): TrainedFeatures {
  json.field('format').integer(FEATURES_FORMAT, FEATURES_FORMAT);
  const spec = readFeatureSpec(json);
  const known = new Set(spec.slots.map((slot) => slot.name));
  const ids = json
    .field('ids')
    .items({ min: 1, max: 10_000 })
    .map((item) => ({
      input: item.field('input').string(),
      slots: item
        .field('slots')
        .items({ min: 1, max: 10_000 })
        .map((slot) => {
          const name = slot.string();
          if (!known.has(name)) slot.fail('the name of a slot listed under "slots"');
          return name;
        }),
    }));
  return { ...spec, ids };
}

export function featureSpecToJson(spec: FeatureSpec): unknown {
  return {
    hash: {
      scheme: spec.hash.scheme,
      seed: spec.hash.seed.toString(),
      modulo: spec.hash.modulo.toString(),
    },
    slots: spec.slots,
    ...(spec.dense === undefined ? {} : { dense: spec.dense }),
    click: spec.click,
    ...(spec.separator === undefined ? {} : { separator: spec.separator }),
  };
}

export function requireDistinct(json: JsonReader, field: string, names: readonly string[]): void {
  if (new Set(names).size !== names.length) json.field(field).fail('distinct names');
}
