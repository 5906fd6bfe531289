/**
 * From inputs to a version, or to parts of one: split the rows by shard, build each shard's layer straight to its place, seal
 * when all shards are there. Nothing depends on time, machine, memory or threads: same input, same bytes. What was finished
 * before a kill is not done again.
 */
import { createHash, randomBytes } from 'node:crypto';
import { dirname, join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef } from '../../lib/core/manifest.ts';
import { Claim } from '../../lib/platform/claim.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import {
  fileBytes,
  fileExists,
  isFolder,
  listFolder,
  removePath,
} from '../../lib/platform/files.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import {
  openRepository,
  type Repository,
  type WorkFolder,
} from '../../lib/repository/repository.ts';
import {
  type BuildPlan,
  formatPart,
  formatPlan,
  parsePart,
  type ShardPart,
  type TablePlan,
} from './build-plan.ts';
import { forgetShard, type Partition, partition } from './partition.ts';
import { type BuildReport, partsReport, sealedReport } from './report.ts';
import { sealVersion } from './seal.ts';
import { type BuiltShard, MEMORY_FACTOR, type ShardTask } from './shard-build.ts';
import { buildShards } from './shard-threads.ts';
import type { TableInput } from './table-input.ts';

/** One table and where its rows come from. */
export interface TableJob {
  readonly plan: TablePlan;
  readonly inputs: readonly TableInput[];
  /** What is compared with, of a diff. */
  readonly oldInputs: readonly TableInput[];
  /** How the inputs are read, as far as it decides what they give. */
  readonly reading: string;
}

export interface BuildJob {
  readonly plan: BuildPlan;
  readonly files: ReadonlyMap<string, Uint8Array>;
  readonly tables: readonly TableJob[];
  /** The parent's layers of each table that is a delta, by shard. */
  readonly chains: ReadonlyMap<string, readonly (readonly LayerRef[])[]>;
  /** Ascending; all of them when the version is to be published. */
  readonly shards: readonly number[];
  readonly publish: boolean;
  readonly memoryBytes: number;
  readonly threads: number;
}

/** A repository, or a folder that may become one: an empty or an absent one. */
export async function openTarget(folder: string): Promise<Repository> {
  const isNew = !isFolder(folder) || listFolder(folder).length === 0;
  const repository = openRepository(folder, { create: true });
  if (isNew || (await repository.bundles()).length > 0 || hasWork(folder)) return repository;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `--output-path ${folder} is not a repository: it holds ${listFolder(folder)[0]} and no bundle; ` +
      'give a repository, or a new folder',
  );
}

/** A build that was killed before its first layer left nothing else. */
function hasWork(folder: string): boolean {
  return listFolder(folder).some((name) => isFolder(join(folder, name, '.work')));
}

/** @throws CubeError when the input is wrong or the version exists with other content; nothing is published then */
export async function runBuild(repository: Repository, job: BuildJob): Promise<BuildReport> {
  const startMs = systemClock.nowMs();
  const { plan, publish, shards } = job;
  await repository.removeLeftovers(plan.bundle);
  const work = repository.workFolder(plan.bundle, plan.version);
  const text = formatPlan(plan);
  const name = createHash('sha256').update(`${text}${shards.join()}`).digest('hex').slice(0, 32);
  const claim = new Claim(work.spillFolder(name));
  try {
    for (const bytes of job.files.values()) work.putFile(bytes);
    const digest = work.putPlan(text);
    const build = new Build(repository, work, job, digest, claim.folder);
    for (const table of job.tables) await build.table(table);
    removePath(claim.folder);
    claim.release();
    const seconds = (): number => Math.round(systemClock.nowMs() - startMs) / 1000;
    if (!publish) return partsReport(repository.location, plan, shards, build.parts, seconds());
    const sealed = await sealVersion(repository, plan.bundle, plan.version, digest);
    return sealedReport(repository.location, sealed, seconds());
  } catch (error) {
    throw withWayOn(error, work);
  } finally {
    claim.release();
  }
}

class Build {
  readonly parts = new Map<string, ShardPart[]>();
  readonly #repository: Repository;
  readonly #work: WorkFolder;
  readonly #job: BuildJob;
  readonly #digest: string;
  readonly #folder: string;

  constructor(
    repository: Repository,
    work: WorkFolder,
    job: BuildJob,
    digest: string,
    folder: string,
  ) {
    this.#repository = repository;
    this.#work = work;
    this.#job = job;
    this.#digest = digest;
    this.#folder = folder;
  }

  async table(table: TableJob): Promise<void> {
    const { name } = table.plan;
    const fingerprint = this.#fingerprint(table);
    const parts: ShardPart[] = [];
    this.parts.set(name, parts);
    const missing = this.#job.shards.filter((shard) => {
      const part = this.#finished(name, shard, fingerprint);
      if (part !== undefined) parts.push(part);
      return part === undefined;
    });
    if (missing.length === 0) return;
    const folder = join(this.#folder, `${name}.${fingerprint.slice(0, 16)}`);
    let divided: Partition;
    try {
      divided = await this.#partition(table, missing, folder);
    } catch (error) {
      // Half a partition is of no use, and may be what fills the disk.
      removePath(folder);
      throw error;
    }
    faultPoint('build.partitioned');
    await this.#buildShards(table, divided, folder, (shard, built) => {
      const part = this.#partOf(built, divided.inputs, fingerprint);
      this.#work.putPart(name, shard, formatPart(part));
      faultPoint('build.shard');
      parts.push(part);
      forgetShard(divided.shards.get(shard)!);
    });
    removePath(folder);
  }

  /** A shard of this plan and these files that is there whole. */
  #finished(table: string, shard: number, fingerprint: string): ShardPart | undefined {
    const text = this.#work.part(table, shard);
    if (text === undefined) return undefined;
    const part = parsePart(text, this.#work.partPath(table, shard));
    if (part.plan !== this.#digest || part.fingerprint !== fingerprint) return undefined;
    if (part.layer === undefined) return part;
    const { contentId, bytes } = part.layer;
    const path = this.#repository.layerTarget(this.#job.plan.bundle, table, contentId);
    return fileExists(path) && fileBytes(path) === bytes ? part : undefined;
  }

  /** Standard input is never the same again. */
  #fingerprint({ plan, inputs, oldInputs, reading }: TableJob): string {
    const all = [...oldInputs, ...inputs];
    const files = all.map((input) => input.files.map((f) => [f.path, f.bytes, f.mtimeMs]));
    const again = all.every((input) => input.files.length > 0)
      ? ''
      : randomBytes(16).toString('hex');
    const facts = [this.#digest, plan.name, reading, files, again];
    return createHash('sha256').update(JSON.stringify(facts)).digest('hex');
  }

  async #partition(table: TableJob, shards: number[], folder: string): Promise<Partition> {
    const { memoryBytes, threads, plan } = this.#job;
    const { inputs, oldInputs } = table;
    const all = [...oldInputs, ...inputs];
    const known = all.every(({ rows }) => rows !== undefined);
    const total = known ? all.reduce((sum, { rows = 0 }) => sum + rows, 0) : 0;
    const bytes = all.reduce((sum, input) => sum + (input.bytes ?? 0), 0);
    const title = `reading ${table.plan.name}`;
    const progress = startProgress(title, total, 'rows', total > 0 ? bytes / total : 0);
    const half = Math.floor(memoryBytes / 2);
    try {
      return await partition(
        {
          ...{ inputs, oldInputs, shards, folder, shardNum: plan.shardNum, budgetBytes: half },
          rangeBytes: Math.floor(half / MEMORY_FACTOR / threads),
          shardBytesMax: Math.floor(half / MEMORY_FACTOR),
        },
        progress,
      );
    } finally {
      progress.stop();
    }
  }

  async #buildShards(
    { plan, inputs }: TableJob,
    divided: Partition,
    folder: string,
    onBuilt: (shard: number, built: BuiltShard) => void,
  ): Promise<void> {
    const { memoryBytes, threads } = this.#job;
    const runs = [...divided.shards.values()].flat();
    const records = runs.reduce((sum, { count }) => sum + count, 0);
    const words = runs.reduce((sum, run) => sum + run.words, 0);
    const rowBytes = records === 0 ? 0 : (4 * words) / records;
    const progress = startProgress(`building ${plan.name}`, records, 'rows', rowBytes);
    let done = 0;
    const task = (shard: number): ShardTask => ({
      subject: this.#subject(plan, shard),
      ...{ mode: plan.mode, layout: plan.layout, search: plan.search },
      distinct: plan.onDuplicate === 'error',
      rowsAre: inputs[0]!.dtype === plan.dtype ? 'stored' : 'f32',
      ranges: divided.shards.get(shard)!,
      rangeBits: divided.rangeBits,
      layersFolder: this.#layersFolder(plan.name),
      workFolder: join(folder, `shard-${shard}`),
      budgetBytes: 0,
    });
    try {
      await buildShards([...divided.shards.keys()].map(task), 4 * words, {
        threads,
        budgetBytes: Math.floor(memoryBytes / 2),
        onBuilt: (built, { subject }) => {
          onBuilt(subject.shardIndex, built);
          done += built.records;
          progress.update(done);
        },
      });
    } catch (error) {
      for (const shard of divided.shards.keys()) removePath(join(folder, `shard-${shard}`));
      throw withTable(error, plan.name);
    } finally {
      progress.stop();
    }
  }

  #subject({ name, dtype, dim, kind }: TablePlan, shardIndex: number): ShardTask['subject'] {
    const { shardNum } = this.#job.plan;
    const parentContentId = kind === 'base' ? '' : this.#parentOf(name, shardIndex);
    return { table: name, dtype, dim, shardIndex, shardNum, parentContentId };
  }

  #parentOf(table: string, shard: number): string {
    const chain = this.#job.chains.get(table)?.[shard];
    return chain?.at(-1)?.contentId ?? '';
  }

  #layersFolder(table: string): string {
    const { bundle } = this.#job.plan;
    return dirname(this.#repository.layerTarget(bundle, table, '0'.repeat(32)));
  }

  #partOf(
    { layer, shared, records, errors, samples }: BuiltShard,
    inputs: string,
    fingerprint: string,
  ): ShardPart {
    const ref = layer && {
      ...{ contentId: layer.contentId, kind: layer.kind, bytes: layer.bytes },
      ...{ sha256: layer.sha256, rows: layer.rows },
    };
    const deleted = layer?.deleted ?? 0;
    return {
      plan: this.#digest,
      inputs,
      fingerprint,
      layer: ref,
      shared,
      records,
      deleted,
      errors,
      samples,
    };
  }
}

/** A full disk, mostly: says that nothing is lost. */
function withWayOn(error: unknown, { path }: WorkFolder): unknown {
  if (!(error instanceof CubeError) || error.code !== 'IO') return error;
  return new CubeError(
    error.code,
    `${error.message}; nothing was published: run the same again to go on from what ${path} holds, ` +
      'or remove that folder',
    { cause: error },
  );
}

/** Errors of rows say which table they are in. */
function withTable(error: unknown, table: string): unknown {
  if (!(error instanceof CubeError) || error.code !== 'INVALID_ARGUMENT') return error;
  if (error.message.startsWith('table ')) return error;
  return new CubeError(error.code, `table ${table}: ${error.message}`, { cause: error });
}
