/**
 * Deploys a version to cube-servers that have no agent, above all C++ ones: writes it beside the
 * old version, loads it, switches to it, and verifies the values of sampled keys. Servers are
 * deployed one after another. The first one that returns wrong values is switched back, and the
 * rest are not touched.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest, TableRef } from '../../lib/core/manifest.ts';
import {
  getTemporarySiblingPath,
  isFolder,
  movePath,
  removePath,
  removeStaleFolders,
  replaceFile,
} from '../../lib/platform/files.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { requireLayerForm } from '../../lib/store/layer-open.ts';
import type { CubeServerClient } from './cube-server-client.ts';
import type { SeekSample } from './seek-sample.ts';
import { exportShard } from './shard-export.ts';

const STAGED_FOLDER_PATTERN = /^\..+\.tmp$/;
const LEFTOVER_IDLE_MS = 3_600_000;

export interface DeployTarget {
  readonly client: CubeServerClient;
  readonly shard: number;
  /** Folder of its dictionaries: `data` in the folder that it runs in. */
  readonly dataFolder: string;
}

export interface DeployOptions {
  readonly repository: Repository;
  readonly manifest: Manifest;
  readonly table: TableRef;
  /** Approximate number of keys to verify. */
  readonly samples: number;
  readonly loadTimeoutMs: number;
  /** Called with the step in progress, for people. */
  readonly onProgress: (text: string) => void;
}

/** @throws CubeError of the first target that failed; those before it serve the version */
export async function deployCube(
  targets: readonly DeployTarget[],
  options: DeployOptions,
): Promise<void> {
  for (const { dataFolder } of targets) {
    if (isFolder(dataFolder)) continue;
    const text = `${dataFolder}: no such folder; run this on the server's host, with --host`;
    throw new CubeError('NOT_FOUND', text);
  }
  for (const [i, target] of targets.entries()) {
    try {
      await deployToServer(target, options);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      const rest = targets.length - i - 1;
      const unchanged = rest === 0 ? '' : `; the ${rest} servers after it were not changed`;
      throw new CubeError(code, `${message}${unchanged}`, { cause: error });
    }
  }
}

async function deployToServer(target: DeployTarget, options: DeployOptions): Promise<void> {
  const { client, shard, dataFolder } = target;
  const { version } = options.manifest;
  const { onProgress, loadTimeoutMs } = options;
  const before = await client.readVersion();
  const staged = getTemporarySiblingPath(join(dataFolder, version));
  try {
    onProgress(`${client.address}: writing shard ${shard}`);
    const sample = await writeShard(target, options, staged);
    if (before === version) {
      await verifyAlreadyServed(client, version, sample);
    } else {
      replaceFolder(staged, join(dataFolder, version));
      onProgress(`${client.address}: loading ${version}`);
      await client.load(version, loadTimeoutMs);
      await switchAndVerify(client, { version, before }, sample);
    }
    replaceFile(join(dataFolder, 'VERSION'), `${version}\n`);
    onProgress(`${client.address}: serves ${version}, ${sample.expectations.length} keys verified`);
  } finally {
    removePath(staged);
  }
}

/** The version was active before this deployment, so there is no previous version to restore. */
async function verifyAlreadyServed(
  client: CubeServerClient,
  version: string,
  sample: SeekSample,
): Promise<void> {
  try {
    await client.verify(version, sample);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const text = `${message}; ${version} was already active there, so deploy another version`;
    throw new CubeError(code, text, { cause: error });
  }
}

/** The server does not use a folder of this name: it is left over from an earlier attempt. */
function replaceFolder(staged: string, folder: string): void {
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
    throw new CubeError(code, `${message}; ${await restorePrevious(client, before)}`, {
      cause: error,
    });
  }
}

/** Returns the outcome as text, so that the error that caused it is reported too. */
async function restorePrevious(client: CubeServerClient, before: string): Promise<string> {
  try {
    if ((await client.readVersion()) !== before) await client.command({ cmd: 'bg_switch' });
    const now = await client.readVersion();
    if (now === before)
      return before === '' ? 'it serves its previous data' : `it serves ${before} again`;
    return `it did not switch back to ${before || 'previous data'} and serves ${now}; restart it`;
  } catch (error) {
    const { message } = CubeError.from(error);
    return `it did not switch back to ${before || 'previous data'}: ${message}`;
  }
}

/** @param folder must not exist; complete when this returns */
async function writeShard(
  { shard, dataFolder }: DeployTarget,
  { repository, manifest, table, samples }: DeployOptions,
  folder: string,
): Promise<SeekSample> {
  removeStaleFolders(dataFolder, STAGED_FOLDER_PATTERN, LEFTOVER_IDLE_MS);
  const layers = table.shards[shard] ?? [];
  const temporary = repository.isLocal ? undefined : new TemporaryFolder('deploy');
  try {
    const paths: string[] = [];
    for (const layer of layers) {
      const local = repository.localLayerPath(manifest.bundle, table.name, layer);
      const path = local ?? join(temporary?.path ?? '', layer.contentId);
      if (local === undefined)
        await repository.fetchLayer(manifest.bundle, table.name, layer, path);
      requireLayerForm(manifest, path);
      paths.push(path);
    }
    return exportShard(table, shard, paths, folder, samples);
  } finally {
    temporary?.remove();
  }
}
