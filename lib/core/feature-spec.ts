/**
 * The features that a model expects. The training script writes `features.json` beside the model:
 * which ids input carries which slot, how a feature becomes a key, how dense features are scaled,
 * and which output is the click probability. slots.json repeats it. Both are drawn in
 * docs/formats/slots.md.
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

/**
 * How the rows of a slot's values become one row. sqrtn: their sum divided by the square root of
 * their number.
 */
export const POOLINGS = ['sum', 'mean', 'sqrtn', 'max'] as const;
export type Pooling = (typeof POOLINGS)[number];

const SIDES = ['user', 'item'] as const;
/** What a slot describes: the user, whom the candidates of a request share, or one candidate. */
export type Side = (typeof SIDES)[number];

/** What decides the keys of a slot's values; the manifest repeats it. `index` enters the hash. */
export interface SlotKeyRule {
  readonly name: string;
  readonly index: number;
  /** Replaces the modulo of the hash for this slot; 0: none. */
  readonly modulo?: bigint;
  /** The value that is used for a missing one; absent: the empty text. */
  readonly missing?: string;
}

/** A categorical field. */
export interface Slot extends SlotKeyRule {
  /** With `item`, no request may give one value for several rows. */
  readonly side?: Side;
  /**
   * Set when a row may have any number of values of the slot; absent: exactly one, missing or not.
   */
  readonly pooling?: Pooling;
  /** The row of an empty bag; default: zeros. */
  readonly emptyBag?: EmptyBag;
}

const EMPTY_BAGS = ['zeros', 'default'] as const;
/** `default`: the table's default row. */
export type EmptyBag = (typeof EMPTY_BAGS)[number];

/**
 * A dense feature: x = missing when empty; then ln(1 + max(x, 0)) when log is set; then (x − shift)
 * · scale, as f32.
 */
export interface DenseFeature {
  readonly name: string;
  /** The graph input that takes it; absent: the `input` of DenseInput. */
  readonly input?: string;
  readonly missing: number;
  readonly log: boolean;
  readonly shift: number;
  readonly scale: number;
}

export interface DenseInput {
  readonly input: string;
  /** In the order of a row's values; features of one input in the order of its columns. */
  readonly features: readonly DenseFeature[];
}

/** The output that holds the click probability: element `column` of each row. */
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
  /**
   * Separator of the values of a pooled slot in a line of text; absent: a line has at most one
   * value.
   */
  readonly separator?: string;
}

/**
 * An ids input of the full graph: shape [batch] or [batch, 1] for one slot, else [batch, slots].
 */
export interface IdsInput {
  readonly input: string;
  readonly slots: readonly string[];
}

export interface TrainedFeatures extends FeatureSpec {
  readonly ids: readonly IdsInput[];
}

const FEATURES_FORMAT = 1;

/** Fields of the feature spec, which features.json has beside `format` and `ids`. */
const SPEC_FIELDS = ['hash', 'slots', 'dense', 'click', 'separator'];
const SLOT_FIELDS = ['name', 'index', 'modulo', 'missing', 'side', 'pooling', 'emptyBag'];
/** Characters of a slot's value for missing ones. */
const MISSING_CHARS_MAX = 1000;
const DENSE_FIELDS = ['name', 'input', 'missing', 'log', 'shift', 'scale'];

function readHash(json: JsonReader): HashSpec {
  json.rejectUnknownFields(['scheme', 'seed', 'modulo']);
  return {
    scheme: json.field('scheme').choice(HASH_SCHEMES),
    seed: json.optional('seed', (f) => f.u64()) ?? 0n,
    modulo: json.optional('modulo', (f) => f.u64()) ?? 0n,
  };
}

function readDense(json: JsonReader): DenseInput {
  json.rejectUnknownFields(['input', 'features']);
  const features = json.field('features').items({ min: 1, max: 10_000 }).map(readDenseFeature);
  requireDistinct(
    json,
    'features',
    features.map((feature) => feature.name),
  );
  return { input: json.field('input').string(), features };
}

function readDenseFeature(item: JsonReader): DenseFeature {
  item.rejectUnknownFields(DENSE_FIELDS);
  return {
    name: item.field('name').string(),
    ...optionalInput(item),
    missing: item.optional('missing', (f) => f.number()) ?? 0,
    log: item.optional('log', (f) => f.boolean()) ?? false,
    shift: item.optional('shift', (f) => f.number()) ?? 0,
    scale: item.optional('scale', (f) => f.number()) ?? 1,
  };
}

function optionalInput(item: JsonReader): { input?: string } {
  const input = item.optional('input', (f) => f.string());
  return input === undefined ? {} : { input };
}

/** @param otherFields fields of the document that the caller reads */
export function readFeatureSpec(
  json: JsonReader,
  otherFields: readonly string[] = [],
): FeatureSpec {
  json.rejectUnknownFields([...SPEC_FIELDS, ...otherFields]);
  const hash = readHash(json.field('hash'));
  const slotItems = json.field('slots').items({ min: 1, max: 10_000 });
  const slots = slotItems.map((item) => readSlot(item, hash));
  requireDistinct(
    json,
    'slots',
    slots.map((slot) => slot.name),
  );
  const click = json.field('click');
  click.rejectUnknownFields(['output', 'column']);
  const separator = json.optional('separator', (f) => f.string(/^[^\t\r\n]$/u, 'one character'));
  return {
    hash,
    slots,
    dense: json.optional('dense', readDense),
    click: {
      output: click.field('output').string(),
      column: click.field('column').integer(0, 1_000_000),
    },
    ...(separator === undefined ? {} : { separator }),
  };
}

function readSlot(item: JsonReader, hash: HashSpec): Slot {
  item.rejectUnknownFields(SLOT_FIELDS);
  const side = item.optional('side', (f) => f.choice(SIDES));
  const pooling = item.optional('pooling', (f) => f.choice(POOLINGS));
  const emptyBag = item.optional('emptyBag', (f) => f.choice(EMPTY_BAGS));
  if (emptyBag !== undefined && pooling === undefined) {
    item.field('pooling').fail(`one of ${POOLINGS.join(', ')}, since the slot has an emptyBag`);
  }
  const keys = readSlotKeyRule(item, hash);
  if (keys.missing !== undefined && pooling !== undefined) {
    item.field('missing').fail('no field "missing" in a slot with pooling; set emptyBag');
  }
  return {
    ...keys,
    ...(side === undefined ? {} : { side }),
    ...(pooling === undefined ? {} : { pooling }),
    ...(emptyBag === undefined ? {} : { emptyBag }),
  };
}

/** Reads the fields that decide keys, here and in the manifest. */
export function readSlotKeyRule(item: JsonReader, hash: HashSpec): SlotKeyRule {
  const modulo = item.optional('modulo', (f) => f.u64());
  const missing = item.optional('missing', (f) => readMissing(f, hash));
  return {
    name: item.field('name').string(NAME_PATTERN, NAME_RULE),
    index: item.field('index').integer(0, 0xffff_ffff),
    ...(modulo === undefined ? {} : { modulo }),
    ...(missing === undefined ? {} : { missing }),
  };
}

/** An id may be written as a number. */
function readMissing(json: JsonReader, { scheme }: HashSpec): string {
  if (scheme === 'raw' || typeof json.value === 'number') return json.u64().toString();
  const value = json.string();
  if (value !== '' && value.length <= MISSING_CHARS_MAX) return value;
  return json.fail(`a text of 1 to ${MISSING_CHARS_MAX} characters`);
}

export function slotKeyRuleToJson({ name, index, modulo, missing }: SlotKeyRule): object {
  return {
    name,
    index,
    ...(modulo === undefined ? {} : { modulo: modulo.toString() }),
    ...(missing === undefined ? {} : { missing }),
  };
}

/** Whether two slots have the same keys for the same values. */
export function areEqualKeyRules(a: SlotKeyRule, b: SlotKeyRule): boolean {
  return (
    a.name === b.name && a.index === b.index && a.modulo === b.modulo && a.missing === b.missing
  );
}

/** The modulo of a slot's keys; 0: none. */
export function getModulo(hash: HashSpec, slot: SlotKeyRule): bigint {
  return slot.modulo ?? hash.modulo;
}

/** Notes for people: one text or several. */
function readComment(json: JsonReader): void {
  if (typeof json.value !== 'string') for (const line of json.items()) line.string();
}

/** Reads features.json. @throws CubeError INVALID_ARGUMENT naming the field */
export function readTrainedFeatures(json: JsonReader): TrainedFeatures {
  json.field('format').integer(FEATURES_FORMAT, FEATURES_FORMAT);
  json.optional('$comment', readComment);
  const spec = readFeatureSpec(json, ['$schema', '$comment', 'format', 'ids']);
  const known = new Set(spec.slots.map((slot) => slot.name));
  const ids = json
    .field('ids')
    .items({ min: 1, max: 10_000 })
    .map((item) => {
      item.rejectUnknownFields(['input', 'slots']);
      const slots = item.field('slots').items({ min: 1, max: 10_000 });
      return {
        input: item.field('input').string(),
        slots: slots.map((slot) => {
          const name = slot.string();
          if (!known.has(name)) slot.fail('the name of a slot listed under "slots"');
          return name;
        }),
      };
    });
  return { ...spec, ids };
}

export function featureSpecToJson(spec: FeatureSpec): unknown {
  return {
    hash: {
      scheme: spec.hash.scheme,
      seed: spec.hash.seed.toString(),
      modulo: spec.hash.modulo.toString(),
    },
    slots: spec.slots.map((slot) => ({ ...slot, ...slotKeyRuleToJson(slot) })),
    ...(spec.dense === undefined ? {} : { dense: spec.dense }),
    click: spec.click,
    ...(spec.separator === undefined ? {} : { separator: spec.separator }),
  };
}

export function requireDistinct(json: JsonReader, field: string, names: readonly string[]): void {
  if (new Set(names).size !== names.length) json.field(field).fail('distinct names');
}
