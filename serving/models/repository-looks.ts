/**
 * Looks at a model repository in Triton's layout: a folder for each model, with config.pbtxt and a
 * numbered folder for each version. A file that is still being copied is not used: a change counts
 * once two successive looks are equal.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { NAME_PATTERN } from '../../lib/core/names.ts';
import { getFileStamp, isFolder, listFolder } from '../../lib/platform/files.ts';

/** A model's folder as it is at one time. */
export interface ModelLook {
  readonly name: string;
  readonly folder: string;
  /** Changes with config.pbtxt and every other file that is not in the folder of a version. */
  readonly settingsStamp: string;
  /** Version numbers to stamps of all their files. */
  readonly versions: ReadonlyMap<string, string>;
}

export type RepositoryLook = ReadonlyMap<string, ModelLook>;

const MODELS_MAX = 1_000;
const FILES_MAX = 10_000;
const DEPTH_MAX = 8;
const VERSION_PATTERN = /^[1-9]\d{0,15}$/;

/**
 * @throws CubeError NOT_FOUND when the repository is not a folder, TOO_LARGE
 */
export function lookAtRepository(repository: string): RepositoryLook {
  if (!isFolder(repository)) {
    throw new CubeError(
      'NOT_FOUND',
      `${repository} is not a folder; give the folder that contains the folders of the models`,
    );
  }
  const names = listFolder(repository).filter((name) => isFolder(join(repository, name)));
  const models = names.filter((name) => NAME_PATTERN.test(name));
  if (models.length > MODELS_MAX) {
    throw new CubeError('TOO_LARGE', `${repository} has more than ${MODELS_MAX} models`);
  }
  return new Map(models.map((name) => [name, lookAtModel(name, join(repository, name))]));
}

/** Folders that are no models because of their names; hidden ones are meant for other programs. */
export function listInvalidNames(repository: string): string[] {
  return listFolder(repository).filter(
    (name) => !name.startsWith('.') && !NAME_PATTERN.test(name) && isFolder(join(repository, name)),
  );
}

function lookAtModel(name: string, folder: string): ModelLook {
  const entries = listFolder(folder).sort();
  const isVersion = (entry: string): boolean =>
    VERSION_PATTERN.test(entry) && isFolder(join(folder, entry));
  const versions = entries.filter(isVersion);
  const others = entries.filter((entry) => !versions.includes(entry));
  return {
    name,
    folder,
    settingsStamp: others.map((entry) => readStamps(folder, entry)).join('\n'),
    versions: new Map(versions.map((version) => [version, readStamps(folder, version)])),
  };
}

/** A text for callers, who need no folder of the server: paths begin with the model's name. */
export function hideFolder(text: string, { folder, name }: ModelLook): string {
  return text.replaceAll(folder, name);
}

/** Path, time, size and inode of a file, or of all files in a folder. */
function readStamps(folder: string, path: string): string {
  const lines: string[] = [];
  const visit = (relative: string, depth: number): void => {
    const full = join(folder, relative);
    if (!isFolder(full)) {
      lines.push(`${relative}:${getFileStamp(full) ?? ''}`);
    } else if (depth < DEPTH_MAX) {
      for (const entry of listFolder(full).sort()) visit(join(relative, entry), depth + 1);
    }
    if (lines.length > FILES_MAX) {
      throw new CubeError('TOO_LARGE', `${join(folder, path)} has more than ${FILES_MAX} files`);
    }
  };
  visit(path, 0);
  return lines.join('\n');
}

/**
 * The state to serve after a look: what is equal in the last two looks, and otherwise the state
 * before. The same holds for what disappears.
 * @param settled the result after the look before
 */
export function settleLooks(
  settled: RepositoryLook,
  before: RepositoryLook,
  now: RepositoryLook,
): RepositoryLook {
  const models: ModelLook[] = [];
  for (const name of new Set([...settled.keys(), ...now.keys()])) {
    const model = settleModel(settled.get(name), before.get(name), now.get(name));
    if (model !== undefined) models.push(model);
  }
  return new Map(models.map((model) => [model.name, model]));
}

function settleModel(
  settled: ModelLook | undefined,
  before: ModelLook | undefined,
  now: ModelLook | undefined,
): ModelLook | undefined {
  if (before === undefined || now === undefined) {
    return before === now ? undefined : settled;
  }
  const versions = new Map<string, string>();
  for (const version of new Set([...(settled?.versions.keys() ?? []), ...now.versions.keys()])) {
    const [last, stamp] = [before.versions.get(version), now.versions.get(version)];
    const kept = last === stamp ? stamp : settled?.versions.get(version);
    if (kept !== undefined) versions.set(version, kept);
  }
  const isSettled = before.settingsStamp === now.settingsStamp;
  const settingsStamp = isSettled ? now.settingsStamp : settled?.settingsStamp;
  return settingsStamp === undefined ? undefined : { ...now, settingsStamp, versions };
}

/** Whether a model is equal in two looks. */
export function isSameModel(before: ModelLook | undefined, now: ModelLook | undefined): boolean {
  if (before === undefined || now === undefined) return before === now;
  return (
    before.settingsStamp === now.settingsStamp &&
    before.versions.size === now.versions.size &&
    [...now.versions].every(([version, stamp]) => before.versions.get(version) === stamp)
  );
}
