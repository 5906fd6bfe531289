/** Puts finished parts together: when every shard of every table is there and all were built to one plan from one input. */
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import type { LayerSource, Repository, WorkFolder } from '../../lib/repository/repository.ts';
import {
  type BuildPlan,
  parsePart,
  parsePlan,
  type ShardPart,
  type TablePlan,
} from './build-plan.ts';

export interface Sealed {
  readonly published: boolean;
  readonly manifest: Manifest;
  /** The tables that were built; the manifest has those carried over too. */
  readonly tables: readonly TablePlan[];
  readonly parts: ReadonlyMap<string, readonly ShardPart[]>;
}

const LISTED_MAX = 8;

/**
 * Publishes a version whose parts are there, and removes what it was built with.
 * @param planDigest the plan to seal; when absent, the one that all parts share
 * What an earlier seal published, and removed the parts of, is told again.
 * @throws CubeError NOT_FOUND listing the shards that are missing; CONFLICT when parts do not agree
 */
export async function sealVersion(
  repository: Repository,
  bundle: string,
  version: string,
  planDigest?: string,
): Promise<Sealed> {
  const work = repository.workFolder(bundle, version);
  if (planDigest === undefined && work.tables().length === 0) {
    const isThere = (await repository.versions(bundle)).includes(version);
    if (isThere) return alreadySealed(await repository.manifest(bundle, version));
  }
  const digest = planDigest ?? commonPlan(work);
  const plan = parsePlan(work.plan(digest), `plan ${digest} in ${work.path}`);
  const parts = new Map<string, readonly ShardPart[]>();
  for (const table of plan.tables) parts.set(table.name, partsOf(work, table, plan, digest));
  const parent =
    plan.parent === undefined ? undefined : await repository.manifest(bundle, plan.parent);
  const manifest = manifestOf(plan, parts, parent);
  const files = new Map(plan.files.map(({ path, sha256 }) => [path, work.file(sha256)]));
  const layers = layersOf(repository, plan, parts);
  const { published } = await repository.publish({ manifest, files, layers });
  faultPoint('build.published');
  work.remove();
  return { published, manifest, tables: plan.tables, parts };
}

function alreadySealed(manifest: Manifest): Sealed {
  return { published: false, manifest, tables: [], parts: new Map() };
}

/** @throws CubeError when there are no parts, or parts of several plans */
function commonPlan(work: WorkFolder): string {
  const shardsOfPlan = new Map<string, string[]>();
  for (const table of work.tables()) {
    for (const shard of work.shards(table)) {
      const { plan } = readPart(work, table, shard) as ShardPart;
      const known = shardsOfPlan.get(plan) ?? [];
      known.push(`${table} ${shard}`);
      shardsOfPlan.set(plan, known);
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
  const [one, other] = [first, second].map((digest) => parsePlan(work.plan(digest), digest));
  throw new CubeError(
    'CONFLICT',
    `parts do not agree: ${listed(shardsOfPlan.get(first)!)} and ` +
      `${listed(shardsOfPlan.get(second)!)} were built with other ${difference(one!, other!)}; ` +
      'build one side again with the options of the other',
  );
}

/** The fields in which two plans differ, with both values where they are short. */
function difference(one: BuildPlan, other: BuildPlan): string {
  const flat = (plan: BuildPlan): [string, string][] => [
    ...Object.entries({ ...plan, tables: plan.tables.map(({ name }) => name) }).map(
      ([name, value]): [string, string] => [name, text(value)],
    ),
    ...plan.tables.flatMap((table) =>
      Object.entries(table).map(([name, value]): [string, string] => [
        `${name} of ${table.name}`,
        text(value),
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

function text(value: unknown): string {
  return (
    JSON.stringify(value, (_, item) => (typeof item === 'bigint' ? String(item) : item)) ?? '-'
  );
}

function readPart(work: WorkFolder, table: string, shard: number): ShardPart | undefined {
  const found = work.part(table, shard);
  return found === undefined ? undefined : parsePart(found, work.partPath(table, shard));
}

/** Every shard's part of a table, of this plan and from one input. */
function partsOf(work: WorkFolder, table: TablePlan, plan: BuildPlan, digest: string): ShardPart[] {
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
      `table ${table.name} lacks ${ranges(missing)} of ${plan.shardNum} shards; build them with ` +
        `--only-shards ${ranges(missing)}, then seal again`,
    );
  }
  const inputs = [...new Set(parts.map((part) => part.inputs))];
  if (inputs.length > 1) {
    const groups = inputs.map((input) =>
      ranges(parts.flatMap((part, shard) => (part.inputs === input ? [shard] : []))),
    );
    throw new CubeError(
      'CONFLICT',
      `table ${table.name}: shards ${groups.join(' and ')} were built from different inputs; ` +
        'build them again from one',
    );
  }
  return parts;
}

/** "0-3,7" */
export function ranges(numbers: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const number of numbers) {
    const last = runs.at(-1);
    if (last !== undefined && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(',');
}

function listed(names: readonly string[]): string {
  const more = names.length > LISTED_MAX ? ` and ${names.length - LISTED_MAX} more` : '';
  return names.slice(0, LISTED_MAX).join(', ') + more;
}

function manifestOf(
  plan: BuildPlan,
  parts: ReadonlyMap<string, readonly ShardPart[]>,
  parent: Manifest | undefined,
): Manifest {
  const { bundle, version, hash, slots, files, shardNum } = plan;
  const built = plan.tables.map((table): TableRef => {
    const below = parent?.tables.find(({ name }) => name === table.name);
    const shards = parts.get(table.name)!.map(({ layer }, shard): readonly LayerRef[] => {
      const own = layer === undefined ? [] : [layer];
      return table.kind === 'delta' ? [...(below?.shards[shard] ?? []), ...own] : own;
    });
    const rows = shards.flat().reduce((sum, layer) => sum + layer.rows, 0);
    const { name, dim, dtype, defaultRow } = table;
    return { name, dim, dtype, rows, defaultRow, shardNum, shards };
  });
  // In the parent's order, new tables after them: the digest of equal tables is equal.
  const carried = (parent?.tables ?? []).map(
    (table) => built.find(({ name }) => name === table.name) ?? table,
  );
  const added = built.filter((table) => !carried.includes(table));
  return { bundle, version, files, hash, slots, tables: [...carried, ...added] };
}

function layersOf(
  repository: Repository,
  { bundle, tables }: BuildPlan,
  parts: ReadonlyMap<string, readonly ShardPart[]>,
): LayerSource[] {
  return tables.flatMap(({ name }) =>
    parts.get(name)!.flatMap(({ layer }) => {
      if (layer === undefined) return [];
      const { contentId } = layer;
      return [{ table: name, contentId, path: repository.layerTarget(bundle, name, contentId) }];
    }),
  );
}
