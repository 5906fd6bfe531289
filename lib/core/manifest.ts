/**
 * The manifest: a version's table of contents, written last. A version without a manifest does not
 * exist. A version is an immutable list of contents, so a new graph with old tables, or a delta,
 * names files that exist already. Drawn in docs/formats/repository.md; JSON Schema:
 * docs/schemas/manifest.schema.json.
 */
import { CubeError } from './errors.ts';
import { xxh64 } from './hash.ts';
import { JsonReader } from './json.ts';
import { CHAIN_LAYERS_MAX } from './limits.ts';
import { CONTENT_ID_PATTERN, NAME_PATTERN, NAME_RULE, SHA256_PATTERN } from './names.ts';
import {
  HASH_SCHEMES,
  type HashSpec,
  readSlotKeyRule,
  type SlotKeyRule,
  slotKeyRuleToJson,
} from './slots.ts';

const MANIFEST_FORMAT = 1;
const CHECKSUM = /^[0-9a-f]{16}$/;
const ENCRYPTION_KEY_ID = /^[0-9a-f]{16}$/;
export const TABLE_DTYPES = ['f32', 'f16', 'bf16', 'i8', 'bytes'] as const;
export type TableDtype = (typeof TABLE_DTYPES)[number];

/** A file in the version's own folder: length and SHA-256 of the file as stored. */
export interface VersionFile {
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
}

/**
 * One immutable shard file. `contentId`: 32 hex digits, of the clear content; `bytes` and `sha256`:
 * of the file as stored.
 */
export interface LayerRef {
  readonly contentId: string;
  readonly kind: 'base' | 'delta';
  readonly bytes: number;
  readonly sha256: string;
  readonly rows: number;
}

export interface TableRef {
  readonly name: string;
  /** 0 for dtype bytes. */
  readonly dim: number;
  readonly dtype: TableDtype;
  /** Rows over all shards. */
  readonly rows: number;
  /** The row of a key that is not in the table, as f32; empty means zeros. */
  readonly defaultRow: readonly number[];
  readonly shardNum: number;
  /** For each shard its layers in order: a base, then deltas. */
  readonly shards: readonly (readonly LayerRef[])[];
}

export interface Manifest {
  readonly bundle: string;
  readonly version: string;
  readonly files: readonly VersionFile[];
  readonly hash: HashSpec;
  readonly slots: readonly SlotKeyRule[];
  readonly tables: readonly TableRef[];
  /** Set when all files and layers of the version are sealed (docs/formats/sealed.md). */
  readonly encryption?: EncryptionRef | undefined;
}

/** The key-encryption key that a version was published with. */
export interface EncryptionRef {
  /** 16 hex digits. */
  readonly keyId: string;
}

/**
 * For uses that would write rows without encryption.
 * @param use what cannot be done, for the error
 * @throws CubeError DENIED for an encrypted version
 */
export function requireClear({ bundle, version, encryption }: Manifest, use: string): void {
  if (encryption === undefined) return;
  throw new CubeError(
    'DENIED',
    `${bundle} ${version} is encrypted, and ${use} would write its rows in clear`,
  );
}

/**
 * The field `encryption` alone is not believed: a manifest without it would let processes with a
 * key write the rows of encrypted layers in clear.
 * @param isSealed whether the stored file is sealed
 * @param where the file, for the error
 * @throws CubeError CORRUPT unless the file is sealed exactly when its version is encrypted
 */
export function requireStoredForm(
  { bundle, version, encryption }: Pick<Manifest, 'bundle' | 'version' | 'encryption'>,
  isSealed: boolean,
  where: string,
): void {
  if (isSealed === (encryption !== undefined)) return;
  throw new CubeError(
    'CORRUPT',
    `${where} is ${isSealed ? '' : 'not '}encrypted, but the manifest of ${bundle} ${version} ` +
      `says that the version is${isSealed ? ' not' : ''}; publish the version again`,
  );
}

/** The number of shards of a lookup of this version: equal for all its tables. */
export function getShardNum(manifest: Manifest): number {
  return manifest.tables[0]?.shardNum ?? 1;
}

export function getTable(manifest: Manifest, name: string): TableRef {
  const table = manifest.tables.find((candidate) => candidate.name === name);
  if (table === undefined) {
    const known = manifest.tables.map((candidate) => candidate.name).join(', ');
    throw new CubeError(
      'NOT_FOUND',
      `${manifest.bundle} ${manifest.version} has no table ${JSON.stringify(name)} ` +
        `(it has: ${known})`,
    );
  }
  return table;
}

function readLayer(json: JsonReader): LayerRef {
  return {
    contentId: json.field('contentId').string(CONTENT_ID_PATTERN, '32 hex digits'),
    kind: json.field('kind').choice(['base', 'delta']),
    bytes: json.field('bytes').integer(0),
    sha256: json.field('sha256').string(SHA256_PATTERN, '64 hex digits'),
    rows: json.field('rows').integer(0),
  };
}

function readTable(json: JsonReader): TableRef {
  const dtype = json.field('dtype').choice(TABLE_DTYPES);
  // Values of any length have no dim.
  const dim =
    dtype === 'bytes' ? json.field('dim').integer(0, 0) : json.field('dim').integer(1, 1 << 20);
  const shardNum = json.field('shardNum').integer(1, 65_536);
  const shards = json
    .field('shards')
    .items({ min: shardNum, max: shardNum })
    .map((layers) =>
      layers.items({ min: 1, max: CHAIN_LAYERS_MAX }).map((item, depth) => {
        const layer = readLayer(item);
        if ((layer.kind === 'base') !== (depth === 0)) {
          item.field('kind').fail(depth === 0 ? '"base" first' : '"delta" after the base');
        }
        return layer;
      }),
    );
  const defaultRow = json.optional('defaultRow', (f) =>
    f.items({ max: dim }).map((x) => x.number()),
  );
  if (defaultRow !== undefined && defaultRow.length !== 0 && defaultRow.length !== dim) {
    json.field('defaultRow').fail(`${dim} numbers (dim), or none for zeros`);
  }
  return {
    name: json.field('name').string(NAME_PATTERN, NAME_RULE),
    dim,
    dtype,
    rows: json.field('rows').integer(0),
    defaultRow: defaultRow ?? [],
    shardNum,
    shards,
  };
}

/** Reads and checks a manifest. @throws CubeError INVALID_ARGUMENT naming the field */
function readManifest(json: JsonReader): Manifest {
  json.field('format').integer(MANIFEST_FORMAT, MANIFEST_FORMAT);
  const tables = json.field('tables').items({ max: 10_000 }).map(readTable);
  if (new Set(tables.map((table) => table.shardNum)).size > 1) {
    json.field('tables').fail('the same shardNum for every table');
  }
  if (new Set(tables.map((table) => table.name)).size !== tables.length) {
    json.field('tables').fail('distinct table names');
  }
  const hashField = json.field('hash');
  const hash: HashSpec = {
    scheme: hashField.field('scheme').choice(HASH_SCHEMES),
    seed: hashField.optional('seed', (f) => f.u64()) ?? 0n,
    modulo: hashField.optional('modulo', (f) => f.u64()) ?? 0n,
  };
  const encryption = json.optional('encryption', (field) => ({
    keyId: field.field('keyId').string(ENCRYPTION_KEY_ID, '16 hex digits'),
  }));
  return {
    bundle: json.field('bundle').string(NAME_PATTERN, NAME_RULE),
    version: json.field('version').string(NAME_PATTERN, NAME_RULE),
    files: json
      .field('files')
      .items({ max: 1000 })
      .map((item) => ({
        path: item.field('path').string(NAME_PATTERN, NAME_RULE),
        bytes: item.field('bytes').integer(0),
        sha256: item.field('sha256').string(SHA256_PATTERN, '64 hex digits'),
      })),
    hash,
    slots: json
      .field('slots')
      .items({ max: 10_000 })
      .map((item) => readSlotKeyRule(item, hash)),
    tables,
    ...(encryption === undefined ? {} : { encryption }),
  };
}

/**
 * Parses a manifest and verifies its checksum. Manifests of older releases have none.
 * @throws CubeError INVALID_ARGUMENT naming the field; CORRUPT if the checksum does not match
 */
export function parseManifest(text: string, source: string): Manifest {
  const json = JsonReader.parse(text, source);
  const manifest = readManifest(json);
  const checksum = json.optional('checksum', (f) => f.string(CHECKSUM, '16 hex digits'));
  if (checksum === undefined) return manifest;
  const { checksum: _, ...fields } = json.value as Record<string, unknown>;
  if (computeChecksum(fields) === checksum) return manifest;
  throw new CubeError(
    'CORRUPT',
    `${source} is damaged: its fields do not match its checksum; restore it or fetch it again`,
  );
}

/** Over the fields as compact JSON, in the order of the document. */
function computeChecksum(fields: object): string {
  const bytes = new TextEncoder().encode(JSON.stringify(fields));
  return xxh64(bytes).toString(16).padStart(16, '0');
}

/**
 * The text of a manifest: JSON with two spaces, fields in a fixed order, 64-bit numbers as decimal
 * strings, a checksum at the end.
 */
export function formatManifest(manifest: Manifest): string {
  const fields = toFields(manifest);
  return toText({ ...fields, checksum: computeChecksum(fields) });
}

/** The text as releases without checksums wrote it, to recognize what they have published. */
export function formatOlderManifest(manifest: Manifest): string {
  return toText(toFields(manifest));
}

function toText(document: object): string {
  return `${JSON.stringify(document, null, 2)}\n`;
}

function toFields(manifest: Manifest): object {
  const { bundle, version, files, hash, slots, tables, encryption } = manifest;
  return {
    format: MANIFEST_FORMAT,
    bundle,
    version,
    files: files.map(({ path, bytes, sha256 }) => ({ path, bytes, sha256 })),
    hash: { scheme: hash.scheme, seed: hash.seed.toString(), modulo: hash.modulo.toString() },
    slots: slots.map(slotKeyRuleToJson),
    tables: tables.map((table) => ({
      name: table.name,
      dim: table.dim,
      dtype: table.dtype,
      rows: table.rows,
      defaultRow: table.defaultRow,
      shardNum: table.shardNum,
      shards: table.shards.map((layers) =>
        layers.map(({ contentId, kind, bytes, sha256, rows }) => ({
          contentId,
          kind,
          bytes,
          sha256,
          rows,
        })),
      ),
    })),
    ...(encryption === undefined ? {} : { encryption: { keyId: encryption.keyId } }),
  };
}

const digests = new WeakMap<Manifest, string>();

/**
 * Identifies the rows of a version by content: 16 hex digits over its tables, their shapes, default
 * rows and layers. People choose version names, and two repositories may give one name to two
 * contents; a lookup that carries the digest is never answered from other rows. Equal for a version
 * with a new graph and the same tables.
 */
export function getTablesDigest(manifest: Manifest): string {
  let digest = digests.get(manifest);
  if (digest === undefined) {
    const tables = manifest.tables.map(({ name, dim, dtype, defaultRow, shardNum, shards }) => [
      name,
      dim,
      dtype,
      defaultRow,
      shardNum,
      shards.map((layers) => layers.map(({ contentId }) => contentId)),
    ]);
    const bytes = new TextEncoder().encode(JSON.stringify(tables));
    digest = xxh64(bytes).toString(16).padStart(16, '0');
    digests.set(manifest, digest);
  }
  return digest;
}
