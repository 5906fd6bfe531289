/**
 * The folder in which a version is built: `<bundle>/.work/<version>/`, hidden from readers by its
 * dot. Builders leave finished parts, which a later run, or the process that publishes, picks up:
 *
 *     plans/<digest>.json          what is built, named by its SHA-256
 *     files/<sha256>               files of the version
 *     parts/<table>/<shard>.json   one finished shard
 *     spill-…/                     temporary files of one build; a claimed folder
 *
 * A finished folder is first renamed to `.removed-…`, so that an interrupted removal leaves no
 * partial build. A folder without changes for a week belongs to an abandoned build.
 */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { CONTENT_ID_PATTERN, checkName, NAME_PATTERN, SHA256_PATTERN } from '../core/names.ts';
import {
  fileExists,
  isFolder,
  listFolder,
  movePath,
  putFileIfAbsent,
  readFile,
  readText,
  removePath,
  removeStaleFolders,
  replaceFile,
} from '../platform/files.ts';
import { isFolderLocked, touchFile } from '../platform/folder-lock.ts';
import { computeSha256 } from './verified-copy.ts';

const WORK_FOLDER = '.work';
const REMOVED_PATTERN = /^\.removed-/;
const IDLE_MS = 7 * 24 * 3_600_000;
const PLAN_BYTES_MAX = 256 << 20;
const PART_BYTES_MAX = 1 << 20;

export class WorkFolder {
  readonly path: string;

  /** @param bundleFolder of a repository on this machine's disk */
  constructor(bundleFolder: string, version: string) {
    this.path = join(bundleFolder, WORK_FOLDER, checkName(version, 'version'));
  }

  /** Stores a plan. @returns its digest, which names it */
  putPlan(text: string): string {
    const digest = computeSha256(new TextEncoder().encode(text));
    putFileIfAbsent(join(this.path, 'plans', `${digest}.json`), text);
    touchFile(this.path);
    return digest;
  }

  /** @throws CubeError NOT_FOUND; CORRUPT if its content does not match its digest */
  readPlan(digest: string): string {
    const path = join(this.path, 'plans', `${checkDigest(digest)}.json`);
    const text = readText(path, PLAN_BYTES_MAX);
    if (computeSha256(new TextEncoder().encode(text)) === digest) return text;
    throw new CubeError('CORRUPT', `${path} is damaged; build the shards of this plan again`);
  }

  putFile(bytes: Uint8Array): string {
    const digest = computeSha256(bytes);
    putFileIfAbsent(join(this.path, 'files', digest), bytes);
    return digest;
  }

  readFile(sha256: string): Uint8Array {
    return readFile(join(this.path, 'files', checkDigest(sha256)));
  }

  putPart(table: string, shard: number, text: string): void {
    replaceFile(this.#partPath(table, shard), text);
    touchFile(this.path);
  }

  /** Undefined if the shard is not finished. */
  readPart(table: string, shard: number): string | undefined {
    const path = this.#partPath(table, shard);
    return fileExists(path) ? readText(path, PART_BYTES_MAX) : undefined;
  }

  /** For messages. */
  partPath(table: string, shard: number): string {
    return this.#partPath(table, shard);
  }

  /** The tables with finished shards. */
  listTables(): string[] {
    return listFolder(join(this.path, 'parts')).filter((name) => !name.startsWith('.'));
  }

  /** The finished shards of a table, ascending. */
  listShards(table: string): number[] {
    return listFolder(join(this.path, 'parts', checkName(table, 'table')))
      .flatMap((name) => /^(\d+)\.json$/.exec(name)?.[1] ?? [])
      .map(Number)
      .sort((a, b) => a - b);
  }

  /** The folder for temporary files of one build. */
  spillFolder(name: string): string {
    if (!CONTENT_ID_PATTERN.test(name)) {
      throw new CubeError('INVALID_ARGUMENT', `spill folder ${name}: expected 32 hex digits`);
    }
    return join(this.path, `spill-${name}`);
  }

  /** Removes the folder, unless another process still works in it. */
  remove(): void {
    if (!isFolder(this.path) || isBusy(this.path)) return;
    const removed = join(this.path, '..', `.removed-${randomBytes(6).toString('hex')}`);
    movePath(this.path, removed);
    removePath(removed);
    removeWhenEmpty(join(this.path, '..'));
  }

  #partPath(table: string, shard: number): string {
    return join(this.path, 'parts', checkName(table, 'table'), `${shard}.json`);
  }
}

/** Removes the work folders of a bundle that have not changed for a week. */
export function removeAbandonedBuilds(bundleFolder: string): void {
  const folder = join(bundleFolder, WORK_FOLDER);
  if (!isFolder(folder)) return;
  for (const name of listFolder(folder).filter((name) => REMOVED_PATTERN.test(name))) {
    removePath(join(folder, name));
  }
  for (const name of listFolder(folder).filter((name) => NAME_PATTERN.test(name))) {
    const exactly = new RegExp(`^${name.replaceAll('.', '\\.')}$`);
    if (!isBusy(join(folder, name))) removeStaleFolders(folder, exactly, IDLE_MS);
  }
  removeWhenEmpty(folder);
}

function isBusy(folder: string): boolean {
  return listFolder(folder).some((name) => isFolderLocked(join(folder, name)));
}

function removeWhenEmpty(folder: string): void {
  if (isFolder(folder) && listFolder(folder).length === 0) removePath(folder);
}

function checkDigest(digest: string): string {
  if (SHA256_PATTERN.test(digest)) return digest;
  throw new CubeError('INVALID_ARGUMENT', `${JSON.stringify(digest)} is not a SHA-256`);
}
