/**
 * Expands paths, folders and globs to a list of input files, Cube dicts and prune-model outputs.
 * Paths keep their order; files inside a folder or glob are sorted by code unit.
 */
import { join } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { fileExists, isFolder, listFolder, statPath } from '../../../lib/platform/files.ts';
import { isCubeDict } from './cube-dict.ts';

const DEPTH_MAX = 32;
const FILES_MAX = 1_000_000;

export interface InputPath {
  readonly path: string;
  readonly kind: 'file' | 'cube-dict' | 'pruned';
}

/** @throws CubeError NOT_FOUND for a path or glob without a match */
export function expandPaths(paths: readonly string[]): InputPath[] {
  const found = new Map<string, InputPath>();
  for (const path of paths) {
    const before = found.size;
    const matches = fileExists(path) || !isGlob(path) ? [path] : expandGlob(path);
    if (matches.length === 0) throw new CubeError('NOT_FOUND', `${path}: no file matches`);
    for (const match of matches) addPath(match, found);
    if (found.size === before && matches.length === 1 && isFolder(path)) {
      throw new CubeError('NOT_FOUND', `${path}: no input file in this folder`);
    }
  }
  return [...found.values()];
}

function addPath(path: string, found: Map<string, InputPath>): void {
  const stat = statPath(path);
  if (stat === undefined) throw new CubeError('NOT_FOUND', `${path}: no such file or folder`);
  if (stat.isFolder) addFolder(path, found, 0);
  else found.set(path, { path, kind: 'file' });
}

function addFolder(folder: string, found: Map<string, InputPath>, depth: number): void {
  if (depth > DEPTH_MAX) throw tooDeep(folder);
  const kind = folderKind(folder);
  if (kind !== undefined) {
    found.set(folder, { path: folder, kind });
    return;
  }
  for (const name of listFolder(folder)) {
    if (isHidden(name) || isPackedDict(folder, name)) continue;
    const path = join(folder, name);
    if (isFolder(path)) addFolder(path, found, depth + 1);
    else found.set(path, { path, kind: 'file' });
    if (found.size > FILES_MAX) {
      throw new CubeError('TOO_LARGE', `${folder}: more than ${FILES_MAX} files`);
    }
  }
}

function folderKind(folder: string): 'cube-dict' | 'pruned' | undefined {
  if (isCubeDict(folder)) return 'cube-dict';
  const isPruned = fileExists(join(folder, 'slots.json')) && isFolder(join(folder, 'tables'));
  return isPruned ? 'pruned' : undefined;
}

/** Marker and temporary files of other tools: `_SUCCESS`, `.part-0.crc`, `_metadata`. */
function isHidden(name: string): boolean {
  return name.startsWith('.') || name.startsWith('_');
}

/** The tar file and checksum that Cube's builder writes next to a dict directory. */
function isPackedDict(folder: string, name: string): boolean {
  const match = /^(.+)\.tar(?:\.md5)?$/.exec(name);
  return match !== null && isCubeDict(join(folder, match[1] as string));
}

function isGlob(path: string): boolean {
  return /[*?[]/.test(path);
}

/** Supports `*` and `?` inside a name, `[…]` character sets, and `**` for any folders. */
function expandGlob(glob: string): string[] {
  const isAbsolute = glob.startsWith('/');
  const segments = glob.split('/').filter((segment) => segment !== '' && segment !== '.');
  let folders = [isAbsolute ? '/' : ''];
  segments.forEach((segment, i) => {
    const isLast = i === segments.length - 1;
    folders = folders.flatMap((folder) => matchSegment(folder, segment, isLast));
  });
  return [...new Set(folders)].sort();
}

function matchSegment(folder: string, segment: string, isLast: boolean): string[] {
  // At the end, `**` is the folder itself, which is read recursively.
  if (segment === '**') return isLast ? [folder === '' ? '.' : folder] : foldersBelow(folder, 0);
  if (!isGlob(segment)) {
    const path = join(folder, segment);
    return fileExists(path) ? [path] : [];
  }
  const pattern = globPattern(segment);
  return listFolder(folder === '' ? '.' : folder)
    .filter((name) => pattern.test(name) && (segment.startsWith('.') || !isHidden(name)))
    .filter((name) => !isPackedDict(folder, name))
    .map((name) => join(folder, name));
}

function foldersBelow(folder: string, depth: number): string[] {
  if (depth > DEPTH_MAX) throw tooDeep(folder);
  const names = listFolder(folder === '' ? '.' : folder).filter((name) => !isHidden(name));
  const folders = names.map((name) => join(folder, name)).filter(isFolder);
  return [folder, ...folders.flatMap((below) => foldersBelow(below, depth + 1))];
}

function globPattern(segment: string): RegExp {
  const source = segment.replaceAll(/\[!?[^\]]+\]|[\s\S]/g, (part) => {
    if (part === '*') return '.*';
    if (part === '?') return '.';
    if (part.length > 1) return part.replace(/^\[!/, '[^').replaceAll('\\', '\\\\');
    return part.replaceAll(/[.+^${}()|[\]\\]/g, '\\$&');
  });
  return new RegExp(`^${source}$`, 's');
}

function tooDeep(folder: string): CubeError {
  return new CubeError('INVALID_ARGUMENT', `${folder}: more than ${DEPTH_MAX} folders deep`);
}
