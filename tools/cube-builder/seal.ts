/** Publishes a version from finished parts: all shards of all tables, from one plan and input. */
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import type { ScoreComparison } from '../../lib/features/expected-scores.ts';
import { getSealingKey, processKeys } from '../../lib/platform/encryption-keys.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import type {
  LayerSource,
  PublishReport,
  Repository,
  WorkFolder,
} from '../../lib/repository/repository.ts';
import {
  type BuildPlan,
  parsePart,
  parsePlan,
  type ShardPart,
  type TablePlan,
} from './build-plan.ts';
import type { BuildTarget } from './build-target.ts';
import { openFiles } from './encryption.ts';
import { type ExpectedScoresRequest, verifyVersion } from './verify-version.ts';

export interface SealedVersion extends PublishReport {
  readonly manifest: Manifest;
  /** The tables that were built; the manifest also lists the tables carried over. */
  readonly tables: readonly TablePlan[];
  readonly parts: ReadonlyMap<string, readonly ShardPart[]>;
  /** The verification from raw rows; undefined when no scores are expected. */
  readonly expected: ScoreComparison | undefined;
}

export interface SealOptions {
  /** The plan to seal; when absent, the plan that all parts share. */
  readonly planDigest?: string;
  /** Checks everything; neither publishes nor removes the work folder. */
  readonly dryRun?: boolean;
  readonly expect: ExpectedScoresRequest;
}

const LISTED_MAX = 8;

/**
 * Publishes a version from its finished parts and removes the work folder. Sealing a version that
 * is already published succeeds.
 * @throws CubeError NOT_FOUND listing the missing shards; CONFLICT if parts do not match;
 *   INVALID_ARGUMENT if a raw row has another score than expected
 */
export async function sealVersion(
  target: BuildTarget,
  bundle: string,
  version: string,
  { planDigest, dryRun = false, expect }: SealOptions,
): Promise<SealedVersion> {
  const { repository } = target;
  const work = target.work.workFolder(bundle, version);
  if (planDigest === undefined && work.listTables().length === 0) {
    const isPublished = (await repository.listVersions(bundle)).includes(version);
    if (isPublished) return describePublished(await repository.readManifest(bundle, version));
  }
  const digest = planDigest ?? findCommonPlan(work);
  const plan = parsePlan(work.readPlan(digest), `plan ${digest} in ${work.path}`);
  const parts = new Map<string, readonly ShardPart[]>();
  for (const table of plan.tables) parts.set(table.name, readParts(work, table, plan, digest));
  const parent =
    plan.parent === undefined ? undefined : await repository.readManifest(bundle, plan.parent);
  const manifest = createManifest(plan, parts, parent);
  const files = new Map(plan.files.map(({ path, sha256 }) => [path, work.readFile(sha256)]));
  const layers = listLayers(target.work, plan, parts);
  if (plan.encryption !== undefined) requirePlannedKey(plan.encryption.keyId);
  const expected = await verifyVersion(target, { manifest, files: openFiles(files) }, expect);
  const key = getSealingKey();
  const readKeyFiles =
    key === undefined || dryRun
      ? undefined
      : () => repository.createVersionKeyFiles(manifest, processKeys, key);
  const outcome = await repository.publish({ manifest, files, layers, readKeyFiles });
  const { published } = outcome;
  // The layers of a folder are there before the version is published.
  const written = target.work === repository ? countNewLayers(parts) : 0;
  const restored = published ? 0 : outcome.restored + written;
  faultPoint('build.published');
  if (!dryRun) work.remove();
  return { published, restored, manifest, tables: plan.tables, parts, expected };
}

/** The layers that the repository did not have. */
export function countNewLayers(parts: ReadonlyMap<string, readonly ShardPart[]>): number {
  const all = [...parts.values()].flat();
  return all.filter(({ layer, shared }) => layer !== undefined && !shared).length;
}

/** @throws CubeError INVALID_ARGUMENT unless this process encrypts with the key of the plan */
function requirePlannedKey(keyId: string): void {
  if (getSealingKey()?.keyId === keyId) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `the shards were encrypted with key ${keyId}: give it with --encrypt-key-file or ` +
      '--encrypt-key-command, as the first key',
  );
}

function describePublished(manifest: Manifest): SealedVersion {
  const outcome = { published: false, restored: 0, expected: undefined };
  return { ...outcome, manifest, tables: [], parts: new Map() };
}

/** @throws CubeError if there are no parts, or parts of several plans */
function findCommonPlan(work: WorkFolder): string {
  const shardsOfPlan = new Map<string, string[]>();
  for (const table of work.listTables()) {
    for (const shard of work.listShards(table)) {
      const { plan } = readPart(work, table, shard) as ShardPart;
      const shards = shardsOfPlan.get(plan) ?? [];
      shards.push(`${table} ${shard}`);
      shardsOfPlan.set(plan, shards);
    }
  }
  const [first, second] = [...shardsOfPlan.keys()];
  if (first === undefined) {
    throw new CubeError(
      'NOT_FOUND',
      `${work.path} has no parts to seal: build them with --only-shards or --only-build`,
    );
  }
  if (second === undefined) return first;
  const one = parsePlan(work.readPlan(first), first);
  const other = parsePlan(work.readPlan(second), second);
  throw new CubeError(
    'CONFLICT',
    `parts do not match: ${formatList(shardsOfPlan.get(first) ?? [])} and ` +
      `${formatList(shardsOfPlan.get(second) ?? [])} were built with different ` +
      `${describeDifference(one, other)}; rebuild one group with the options of the other`,
  );
}

/** Lists the fields in which two plans differ, with both values if they are short. */
function describeDifference(one: BuildPlan, other: BuildPlan): string {
  const flat = (plan: BuildPlan): [string, string][] => [
    ...Object.entries({ ...plan, tables: plan.tables.map(({ name }) => name) }).map(
      ([name, value]): [string, string] => [name, formatValue(value)],
    ),
    ...plan.tables.flatMap((table) =>
      Object.entries(table).map(([name, value]): [string, string] => [
        `${name} of ${table.name}`,
        formatValue(value),
      ]),
    ),
  ];
  const others = new Map(flat(other));
  const differing = flat(one).filter(([name, value]) => others.get(name) !== value);
  return differing
    .map(([name, value]) => {
      const pair = `${value} and ${others.get(name) ?? 'nothing'}`;
      return pair.length <= 60 ? `${name} (${pair})` : name;
    })
    .join(', ');
}

function formatValue(value: unknown): string {
  return (
    JSON.stringify(value, (_, item) => (typeof item === 'bigint' ? String(item) : item)) ?? '-'
  );
}

function readPart(work: WorkFolder, table: string, shard: number): ShardPart | undefined {
  const found = work.readPart(table, shard);
  return found === undefined ? undefined : parsePart(found, work.partPath(table, shard));
}

/** Reads the parts of all shards of a table. @throws CubeError if some are missing or differ */
function readParts(
  work: WorkFolder,
  table: TablePlan,
  plan: BuildPlan,
  digest: string,
): ShardPart[] {
  const parts: ShardPart[] = [];
  const missing: number[] = [];
  for (let shard = 0; shard < plan.shardNum; shard++) {
    const part = readPart(work, table.name, shard);
    if (part === undefined || part.plan !== digest) missing.push(shard);
    else parts.push(part);
  }
  if (missing.length > 0) {
    throw new CubeError(
      'NOT_FOUND',
      `table ${table.name}: shards ${formatRanges(missing)} of ${plan.shardNum} are missing; ` +
        `build them with --only-shards ${formatRanges(missing)}, then seal again`,
    );
  }
  const inputs = [...new Set(parts.map((part) => part.inputs))];
  if (inputs.length > 1) {
    const groups = inputs.map((input) =>
      formatRanges(parts.flatMap((part, shard) => (part.inputs === input ? [shard] : []))),
    );
    throw new CubeError(
      'CONFLICT',
      `table ${table.name}: shards ${groups.join(' and ')} were built from different inputs; ` +
        'rebuild one group from the input of the other',
    );
  }
  return parts;
}

/** Formats ascending numbers as ranges, such as "0-3,7". */
export function formatRanges(numbers: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const number of numbers) {
    const last = runs.at(-1);
    if (last !== undefined && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(',');
}

function formatList(names: readonly string[]): string {
  const more = names.length > LISTED_MAX ? ` and ${names.length - LISTED_MAX} more` : '';
  return names.slice(0, LISTED_MAX).join(', ') + more;
}

function createManifest(
  plan: BuildPlan,
  parts: ReadonlyMap<string, readonly ShardPart[]>,
  parent: Manifest | undefined,
): Manifest {
  const { bundle, version, hash, slots, files, shardNum } = plan;
  const built = plan.tables.map((table): TableRef => {
    const parentTable = parent?.tables.find(({ name }) => name === table.name);
    const shards = (parts.get(table.name) ?? []).map(({ layer }, shard): readonly LayerRef[] => {
      const own = layer === undefined ? [] : [layer];
      return table.kind === 'delta' ? [...(parentTable?.shards[shard] ?? []), ...own] : own;
    });
    const rows = shards.flat().reduce((sum, layer) => sum + layer.rows, 0);
    const { name, dim, dtype, defaultRow } = table;
    return { name, dim, dtype, rows, defaultRow, shardNum, shards };
  });
  // A fixed order (the parent's, then new tables) gives equal manifests for equal tables.
  const carried = (parent?.tables ?? []).map(
    (table) => built.find(({ name }) => name === table.name) ?? table,
  );
  const added = built.filter((table) => !carried.includes(table));
  const all = [...carried, ...added];
  return { bundle, version, files, hash, slots, tables: all, encryption: plan.encryption };
}

function listLayers(
  repository: Repository,
  { bundle, tables }: BuildPlan,
  parts: ReadonlyMap<string, readonly ShardPart[]>,
): LayerSource[] {
  return tables.flatMap(({ name }) =>
    (parts.get(name) ?? []).flatMap(({ layer }) => {
      if (layer === undefined) return [];
      const { contentId } = layer;
      return [{ table: name, contentId, path: repository.layerWritePath(bundle, name, contentId) }];
    }),
  );
}
