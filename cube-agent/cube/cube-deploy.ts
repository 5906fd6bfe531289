/**
 * A version onto cube-servers that follow no channel, C++ ones above all: written beside the old version, loaded, switched to,
 * and believed only when sampled keys are answered with the version's own values. One server after another; the first that
 * does otherwise goes back to what it had, and the rest are left alone.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest, TableRef } from '../../lib/core/manifest.ts';
import {
  isFolder,
  movePath,
  removePath,
  removeStaleFolders,
  replaceFile,
  temporaryBeside,
} from '../../lib/platform/files.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { CubeServerClient } from './cube-server-client.ts';
import type { SeekSample } from './seek-sample.ts';
import { exportShard } from './shard-export.ts';

const TEMPORARY = /^\..+\.tmp$/;
const LEFTOVER_IDLE_MS = 3_600_000;

export interface CubeTarget {
  readonly client: CubeServerClient;
  readonly shard: number;
  /** Where its dictionaries are: `data` in the folder that it runs in. */
  readonly dataFolder: string;
}

export interface CubeDeployOptions {
  readonly repository: Repository;
  readonly manifest: Manifest;
  readonly table: TableRef;
  /** Keys to verify with, about. */
  readonly samples: number;
  readonly loadTimeoutMs: number;
  /** What is being done, for people. */
  readonly tell: (text: string) => void;
}

/** @throws CubeError of the first target that does not serve the version; the targets before it do */
export async function deployCube(
  targets: readonly CubeTarget[],
  options: CubeDeployOptions,
): Promise<void> {
  for (const { dataFolder } of targets) {
    if (isFolder(dataFolder)) continue;
    const text = `${dataFolder}: no such folder here; run this on the server's host, with --host`;
    throw new CubeError('NOT_FOUND', text);
  }
  for (const [i, target] of targets.entries()) {
    try {
      await deployOne(target, options);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      const rest = targets.length - i - 1;
      const left = rest === 0 ? '' : `; ${rest} servers after it were left alone`;
      throw new CubeError(code, `${message}${left}`, { cause: error });
    }
  }
}

async function deployOne(target: CubeTarget, options: CubeDeployOptions): Promise<void> {
  const { client, shard, dataFolder } = target;
  const { version } = options.manifest;
  const { tell, loadTimeoutMs } = options;
  const before = await client.version();
  const staged = temporaryBeside(join(dataFolder, version));
  try {
    tell(`${client.address}: writing shard ${shard}`);
    const sample = await writeShard(target, options, staged);
    if (before === version) {
      await verifyServed(client, version, sample);
    } else {
      placeFolder(staged, join(dataFolder, version));
      tell(`${client.address}: loading ${version}`);
      await client.load(version, loadTimeoutMs);
      await switchAndVerify(client, { version, before }, sample);
    }
    replaceFile(join(dataFolder, 'VERSION'), `${version}\n`);
    tell(`${client.address}: serves ${version}, ${sample.expectations.length} keys verified`);
  } finally {
    removePath(staged);
  }
}

/** Whoever brought it there, the values decide; what it served before is not known, so it is left to people. */
async function verifyServed(
  client: CubeServerClient,
  version: string,
  sample: SeekSample,
): Promise<void> {
  try {
    await client.verify(version, sample);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const text = `${message}; it served ${version} already, so deploy another version over it`;
    throw new CubeError(code, text, { cause: error });
  }
}

/** Nothing of the name is being served: what stands there is left of an earlier try. */
function placeFolder(staged: string, folder: string): void {
  removePath(folder);
  movePath(staged, folder);
}

async function switchAndVerify(
  client: CubeServerClient,
  { version, before }: { version: string; before: string },
  sample: SeekSample,
): Promise<void> {
  try {
    await client.command({ cmd: 'enable', version });
    await client.verify(version, sample);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `${message}; ${await goBack(client, before)}`, { cause: error });
  }
}

/** What came of going back, in words; the reason for it must not be lost over it. */
async function goBack(client: CubeServerClient, before: string): Promise<string> {
  try {
    if ((await client.version()) !== before) await client.command({ cmd: 'bg_switch' });
    const now = await client.version();
    if (now === before)
      return before === '' ? 'it serves what it had' : `it serves ${before} as before`;
    return `it did not go back to ${before || 'what it had'} and serves ${now}: restart it`;
  } catch (error) {
    return `and it did not go back to ${before || 'what it had'}: ${CubeError.from(error).message}`;
  }
}

/** @param folder absent; whole afterwards */
async function writeShard(
  { shard, dataFolder }: CubeTarget,
  { repository, manifest, table, samples }: CubeDeployOptions,
  folder: string,
): Promise<SeekSample> {
  removeStaleFolders(dataFolder, TEMPORARY, LEFTOVER_IDLE_MS);
  const layers = table.shards[shard]!;
  const between = repository.isLocal ? undefined : new TemporaryFolder('deploy');
  try {
    const paths: string[] = [];
    for (const layer of layers) {
      const local = repository.localLayer(manifest.bundle, table.name, layer);
      const path = local ?? join(between?.path ?? '', layer.contentId);
      if (local === undefined)
        await repository.fetchLayer(manifest.bundle, table.name, layer, path);
      paths.push(path);
    }
    return exportShard(table, shard, paths, folder, samples);
  } finally {
    between?.remove();
  }
}
