/**
 * Builds a version or some of its shards: partitions the rows by shard, writes the layer of each
 * shard into the repository, and seals the version when all shards exist. Equal input gives equal
 * bytes, independent of time, machine, memory and threads. Work finished before a crash is reused.
 */
import { createHash, randomBytes } from 'node:crypto';
import { dirname, join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef } from '../../lib/core/manifest.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import { fileExists, getFileBytes, removePath } from '../../lib/platform/files.ts';
import { FolderLock } from '../../lib/platform/folder-lock.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import type { Repository, WorkFolder } from '../../lib/repository/repository.ts';
import {
  type BuildPlan,
  formatPart,
  formatPlan,
  parsePart,
  type ShardPart,
  type TablePlan,
} from './build-plan.ts';
import type { BuildTarget } from './build-target.ts';
import { getShardRuns, type Partition, partitionTable, removeRecordFiles } from './partition.ts';
import { type BuildReport, createPartsReport, createVersionReport } from './report.ts';
import { sealVersion } from './seal.ts';
import { type BuiltShard, MEMORY_FACTOR, type ShardTask } from './shard-build.ts';
import { buildShards } from './shard-threads.ts';
import type { TableInput } from './table-input.ts';
import type { ExpectedScoresRequest } from './verify-version.ts';

/** A table to build and its inputs. */
export interface TableJob {
  readonly plan: TablePlan;
  readonly inputs: readonly TableInput[];
  /** The old rows of a diff; else empty. */
  readonly oldInputs: readonly TableInput[];
  /** The options, as text, that influence which rows the inputs yield. */
  readonly readOptions: string;
}

export interface BuildJob {
  readonly plan: BuildPlan;
  readonly files: ReadonlyMap<string, Uint8Array>;
  readonly tables: readonly TableJob[];
  /** The parent's layers of each delta table, by shard. */
  readonly chains: ReadonlyMap<string, readonly (readonly LayerRef[])[]>;
  /** Shards to build, ascending; all of them if the version is published. */
  readonly shards: readonly number[];
  readonly publish: boolean;
  readonly expect: ExpectedScoresRequest;
  readonly memoryBytes: number;
  readonly threads: number;
}

/**
 * @throws CubeError if the input is wrong or the version exists with different content; nothing
 *   is published then
 */
export async function runBuild(target: BuildTarget, job: BuildJob): Promise<BuildReport> {
  const { repository } = target;
  const startMs = systemClock.nowMs();
  const { plan, publish, shards } = job;
  await repository.removeLeftovers(plan.bundle);
  const work = target.work.workFolder(plan.bundle, plan.version);
  const text = formatPlan(plan);
  const name = createHash('sha256').update(`${text}${shards.join()}`).digest('hex').slice(0, 32);
  const lock = new FolderLock(work.spillFolder(name));
  try {
    for (const bytes of job.files.values()) work.putFile(bytes);
    const digest = work.putPlan(text);
    const build = new VersionBuilder(target.work, work, job, digest, lock.folder);
    for (const table of job.tables) await build.buildTable(table);
    removePath(lock.folder);
    lock.release();
    const seconds = (): number => Math.round(systemClock.nowMs() - startMs) / 1000;
    if (!publish)
      return createPartsReport(repository.location, plan, shards, build.parts, seconds());
    const sealed = await sealVersion(target, plan.bundle, plan.version, {
      planDigest: digest,
      expect: job.expect,
    });
    return createVersionReport(repository.location, sealed, seconds());
  } catch (error) {
    throw target.work === repository ? addRetryHint(error, work) : error;
  } finally {
    lock.release();
  }
}

class VersionBuilder {
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

  async buildTable(table: TableJob): Promise<void> {
    const { name } = table.plan;
    const fingerprint = this.#computeFingerprint(table);
    const parts: ShardPart[] = [];
    this.parts.set(name, parts);
    const missing = this.#job.shards.filter((shard) => {
      const part = this.#readFinishedPart(name, shard, fingerprint);
      if (part !== undefined) parts.push(part);
      return part === undefined;
    });
    if (missing.length === 0) return;
    const folder = join(this.#folder, `${name}.${fingerprint.slice(0, 16)}`);
    let partition: Partition;
    try {
      partition = await this.#partition(table, missing, folder);
    } catch (error) {
      // An incomplete partition cannot be reused, and it may be what fills the disk.
      removePath(folder);
      throw error;
    }
    faultPoint('build.partitioned');
    await this.#buildShards(table, partition, folder, (shard, built) => {
      const part = this.#createPart(built, partition.inputsDigest, fingerprint);
      this.#work.putPart(name, shard, formatPart(part));
      faultPoint('build.shard');
      parts.push(part);
      removeRecordFiles(getShardRuns(partition, shard));
    });
    removePath(folder);
  }

  /** Returns the part of a shard that was already built with this plan from these files. */
  #readFinishedPart(table: string, shard: number, fingerprint: string): ShardPart | undefined {
    const text = this.#work.readPart(table, shard);
    if (text === undefined) return undefined;
    const part = parsePart(text, this.#work.partPath(table, shard));
    if (part.plan !== this.#digest || part.fingerprint !== fingerprint) return undefined;
    if (part.layer === undefined) return part;
    const { contentId, bytes } = part.layer;
    const path = this.#repository.layerWritePath(this.#job.plan.bundle, table, contentId);
    return fileExists(path) && getFileBytes(path) === bytes ? part : undefined;
  }

  /** Identifies the inputs. Standard input gets a random value, so its shards are never reused. */
  #computeFingerprint({ plan, inputs, oldInputs, readOptions }: TableJob): string {
    const all = [...oldInputs, ...inputs];
    const files = all.map((input) => input.files.map((f) => [f.path, f.bytes, f.mtimeMs]));
    const nonce = all.every((input) => input.files.length > 0)
      ? ''
      : randomBytes(16).toString('hex');
    const facts = [this.#digest, plan.name, readOptions, files, nonce];
    return createHash('sha256').update(JSON.stringify(facts)).digest('hex');
  }

  async #partition(table: TableJob, shards: number[], folder: string): Promise<Partition> {
    const { memoryBytes, threads, plan } = this.#job;
    const { inputs, oldInputs } = table;
    const all = [...oldInputs, ...inputs];
    const isKnown = all.every(({ rows }) => rows !== undefined);
    const total = isKnown ? all.reduce((sum, { rows = 0 }) => sum + rows, 0) : 0;
    const bytes = all.reduce((sum, input) => sum + (input.bytes ?? 0), 0);
    const title = `reading ${table.plan.name}`;
    const progress = startProgress(title, total, 'rows', total > 0 ? bytes / total : 0);
    const halfBytes = Math.floor(memoryBytes / 2);
    try {
      return await partitionTable(
        {
          inputs,
          oldInputs,
          shards,
          folder,
          shardNum: plan.shardNum,
          budgetBytes: halfBytes,
          rangeBytes: Math.floor(halfBytes / MEMORY_FACTOR / threads),
          shardBytesMax: Math.floor(halfBytes / MEMORY_FACTOR),
        },
        progress,
      );
    } finally {
      progress.stop();
    }
  }

  async #buildShards(
    { plan, inputs }: TableJob,
    partition: Partition,
    folder: string,
    onBuilt: (shard: number, built: BuiltShard) => void,
  ): Promise<void> {
    const { memoryBytes, threads } = this.#job;
    const runs = [...partition.shards.values()].flat();
    const records = runs.reduce((sum, { count }) => sum + count, 0);
    const words = runs.reduce((sum, run) => sum + run.words, 0);
    const rowBytes = records === 0 ? 0 : (4 * words) / records;
    const progress = startProgress(`building ${plan.name}`, records, 'rows', rowBytes);
    let done = 0;
    const task = (shard: number): ShardTask => ({
      identity: this.#createIdentity(plan, shard),
      mode: plan.mode,
      layout: plan.layout,
      search: plan.search,
      rejectDuplicates: plan.onDuplicate === 'error',
      rowEncoding: inputs[0]!.dtype === plan.dtype ? 'stored' : 'f32',
      ranges: getShardRuns(partition, shard),
      rangeBits: partition.rangeBits,
      layersFolder: this.#getLayersFolder(plan.name),
      workFolder: join(folder, `shard-${shard}`),
      budgetBytes: 0,
    });
    try {
      await buildShards([...partition.shards.keys()].map(task), 4 * words, {
        threads,
        budgetBytes: Math.floor(memoryBytes / 2),
        onBuilt: (built, { identity }) => {
          onBuilt(identity.shardIndex, built);
          done += built.records;
          progress.update(done);
        },
      });
    } catch (error) {
      for (const shard of partition.shards.keys()) removePath(join(folder, `shard-${shard}`));
      throw addTableName(error, plan.name);
    } finally {
      progress.stop();
    }
  }

  #createIdentity(
    { name, dtype, dim, kind }: TablePlan,
    shardIndex: number,
  ): ShardTask['identity'] {
    const { shardNum } = this.#job.plan;
    const parentContentId = kind === 'base' ? '' : this.#findParentContentId(name, shardIndex);
    return { table: name, dtype, dim, shardIndex, shardNum, parentContentId };
  }

  #findParentContentId(table: string, shard: number): string {
    const chain = this.#job.chains.get(table)?.[shard];
    return chain?.at(-1)?.contentId ?? '';
  }

  #getLayersFolder(table: string): string {
    const { bundle } = this.#job.plan;
    return dirname(this.#repository.layerWritePath(bundle, table, '0'.repeat(32)));
  }

  #createPart(
    { layer, shared, records, compared, errors, samples }: BuiltShard,
    inputs: string,
    fingerprint: string,
  ): ShardPart {
    const ref = layer && {
      contentId: layer.contentId,
      kind: layer.kind,
      bytes: layer.bytes,
      sha256: layer.sha256,
      rows: layer.rows,
    };
    const deleted = layer?.deleted ?? 0;
    return {
      plan: this.#digest,
      inputs,
      fingerprint,
      layer: ref,
      layout: layer?.layout,
      shared,
      records: records - compared,
      deleted,
      errors,
      samples,
    };
  }
}

/** Adds to I/O errors, such as a full disk, how the build can be continued. */
function addRetryHint(error: unknown, { path }: WorkFolder): unknown {
  if (!(error instanceof CubeError) || error.code !== 'IO') return error;
  return new CubeError(
    error.code,
    `${error.message}; nothing was published: run the same command again to continue from ` +
      `${path}, or remove that folder`,
    { cause: error },
  );
}

/** Adds the table name to errors in rows. */
function addTableName(error: unknown, table: string): unknown {
  if (!(error instanceof CubeError) || error.code !== 'INVALID_ARGUMENT') return error;
  if (error.message.startsWith('table ')) return error;
  return new CubeError(error.code, `table ${table}: ${error.message}`, { cause: error });
}
