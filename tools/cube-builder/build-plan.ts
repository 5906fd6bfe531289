/**
 * The plan of a build: everything it creates, but not its inputs. Machines with the same plan
 * build parts of the same version. The plan is stored in the work folder under its digest, so
 * sealing needs only that folder.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { LAYER_LAYOUTS, type LayerLayout } from '../../lib/core/layer-format.ts';
import {
  type LayerRef,
  type Manifest,
  TABLE_DTYPES,
  type TableDtype,
  type VersionFile,
} from '../../lib/core/manifest.ts';
import { CONTENT_ID_PATTERN, NAME_PATTERN, SHA256_PATTERN } from '../../lib/core/names.ts';
import type { QuantizationSearch } from '../../lib/core/quantized-rows.ts';
import { NO_ROW_ERRORS, type RowErrors } from '../../lib/core/row-codec.ts';
import {
  HASH_SCHEMES,
  type HashSpec,
  readSlotKeyRule,
  type SlotKeyRule,
  slotKeyRuleToJson,
} from '../../lib/core/slots.ts';
import { type DtypeErrors, ROW_DTYPES } from './dtype-samples.ts';
import type { SelectionMode } from './record-selection.ts';

const FORMAT = 1;
const KINDS = ['base', 'delta'] as const;
const MODES = ['base', 'delta', 'diff'] as const;

export interface TablePlan {
  readonly name: string;
  readonly dim: number;
  readonly dtype: TableDtype;
  readonly defaultRow: readonly number[];
  /** Kind of the layers; a delta extends the parent's layers of the same table. */
  readonly kind: 'base' | 'delta';
  readonly mode: SelectionMode;
  readonly layout: 'indexed' | undefined;
  readonly search: QuantizationSearch;
  readonly onDuplicate: 'last' | 'error';
}

export interface BuildPlan {
  readonly bundle: string;
  readonly version: string;
  /** Parent version; its tables that are not built here are carried over. */
  readonly parent: string | undefined;
  readonly shardNum: number;
  readonly hash: HashSpec;
  readonly slots: readonly SlotKeyRule[];
  readonly files: readonly VersionFile[];
  readonly tables: readonly TablePlan[];
  /** The key of an encrypted version. */
  readonly encryption?: Manifest['encryption'];
}

/** The result of one finished shard. */
export interface ShardPart {
  /** SHA-256 of the plan's text. */
  readonly plan: string;
  /** Digest of all rows read for the table, in all shards. */
  readonly inputs: string;
  /** Identifies the input files; a build with the same fingerprint reuses the shard. */
  readonly fingerprint: string;
  /** Undefined if a delta changes nothing in this shard. */
  readonly layer: LayerRef | undefined;
  /** Layout of the layer; undefined without one. */
  readonly layout: LayerLayout | undefined;
  readonly shared: boolean;
  /** Records read, without those of the old input of a diff that deleted nothing. */
  readonly records: number;
  readonly deleted: number;
  readonly errors: RowErrors;
  /** Errors that each dtype would cause in a sample of the f32 rows. */
  readonly samples: DtypeErrors | undefined;
}

export function formatPlan(plan: BuildPlan): string {
  const { hash, slots, tables, parent = null, ...rest } = plan;
  const document = {
    format: FORMAT,
    ...rest,
    parent,
    hash: { scheme: hash.scheme, seed: String(hash.seed), modulo: String(hash.modulo) },
    slots: slots.map(slotKeyRuleToJson),
    tables: tables.map(({ layout = null, ...table }) => ({ ...table, layout })),
  };
  return `${JSON.stringify(document, null, 2)}\n`;
}

/** @throws CubeError INVALID_ARGUMENT with the wrong field */
export function parsePlan(text: string, source: string): BuildPlan {
  const json = JsonReader.parse(text, source);
  json.field('format').integer(FORMAT, FORMAT);
  const hashField = json.field('hash');
  const hash: HashSpec = {
    scheme: hashField.field('scheme').choice(HASH_SCHEMES),
    seed: hashField.field('seed').u64(),
    modulo: hashField.field('modulo').u64(),
  };
  return {
    bundle: json.field('bundle').string(NAME_PATTERN),
    version: json.field('version').string(NAME_PATTERN),
    parent: json.optional('parent', (f) => f.string(NAME_PATTERN)),
    shardNum: json.field('shardNum').integer(1),
    hash,
    slots: json
      .field('slots')
      .items()
      .map((slot) => readSlotKeyRule(slot, hash)),
    files: json
      .field('files')
      .items()
      .map((file) => ({
        path: file.field('path').string(NAME_PATTERN),
        bytes: file.field('bytes').integer(0),
        sha256: file.field('sha256').string(SHA256_PATTERN),
      })),
    tables: json.field('tables').items().map(readTable),
    encryption: json.optional('encryption', (field) => ({
      keyId: field.field('keyId').string(),
    })),
  };
}

function readTable(json: JsonReader): TablePlan {
  return {
    name: json.field('name').string(NAME_PATTERN),
    dim: json.field('dim').integer(0),
    dtype: json.field('dtype').choice(TABLE_DTYPES),
    defaultRow: json
      .field('defaultRow')
      .items()
      .map((value) => value.number()),
    kind: json.field('kind').choice(KINDS),
    mode: json.field('mode').choice(MODES),
    layout: json.optional('layout', (f) => f.choice(['indexed'])),
    search: json.field('search').choice(['range', 'greedy']),
    onDuplicate: json.field('onDuplicate').choice(['last', 'error']),
  };
}

export function formatPart(part: ShardPart): string {
  const { layer = null, ...rest } = part;
  return `${JSON.stringify({ format: FORMAT, ...rest, layer }, null, 2)}\n`;
}

/** @throws CubeError INVALID_ARGUMENT with the wrong field */
export function parsePart(text: string, source: string): ShardPart {
  const json = JsonReader.parse(text, source);
  json.field('format').integer(FORMAT, FORMAT);
  return {
    plan: json.field('plan').string(SHA256_PATTERN),
    inputs: json.field('inputs').string(SHA256_PATTERN),
    fingerprint: json.field('fingerprint').string(SHA256_PATTERN),
    layer: json.optional('layer', readLayer),
    layout: json.optional('layout', (field) => field.choice(LAYER_LAYOUTS)),
    shared: json.field('shared').boolean(),
    records: json.field('records').integer(0),
    deleted: json.field('deleted').integer(0),
    errors: json.optional('errors', readErrors) ?? NO_ROW_ERRORS,
    samples: json.optional('samples', readSamples),
  };
}

function readSamples(json: JsonReader): DtypeErrors {
  return Object.fromEntries(
    ROW_DTYPES.map((dtype) => [dtype, json.optional(dtype, readErrors)]),
  ) as DtypeErrors;
}

function readLayer(json: JsonReader): LayerRef {
  return {
    contentId: json.field('contentId').string(CONTENT_ID_PATTERN),
    kind: json.field('kind').choice(KINDS),
    bytes: json.field('bytes').integer(0),
    sha256: json.field('sha256').string(SHA256_PATTERN),
    rows: json.field('rows').integer(0),
  };
}

function readErrors(json: JsonReader): RowErrors {
  return {
    elements: json.field('elements').integer(0),
    meanAbsolute: json.field('meanAbsolute').number(),
    maxAbsolute: json.field('maxAbsolute').number(),
    meanSquared: json.field('meanSquared').number(),
  };
}

/** Parses "0-3,7" into ascending shard numbers. @throws CubeError INVALID_ARGUMENT */
export function parseShardList(text: string, shardNum: number): number[] {
  const shards = new Set<number>();
  for (const part of text.split(',')) {
    const [, from = '', to = from] = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(part.trim()) ?? [];
    const [first, last] = [Number(from), Number(to)];
    if (from === '' || first > last || last >= shardNum) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `--only-shards ${text}: ${JSON.stringify(part)} is not a shard or a range of shards ` +
          `in 0..${shardNum - 1}`,
      );
    }
    for (let shard = first; shard <= last; shard++) shards.add(shard);
  }
  return [...shards].sort((a, b) => a - b);
}
