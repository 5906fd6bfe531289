/**
 * Serving one version from a folder (`--bundle-dir`): the source that reloads it when a watched
 * file changes (Paddle Serving's reloadable_meta and reloadable_type), and the folder as a
 * read-only repository. A half-written folder is never loaded, because its files do not match its
 * manifest.
 */
import { createHash } from 'node:crypto';
import { join, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { parseManifest } from '../../lib/core/manifest.ts';
import { fileExists, readFile, readText, statPath } from '../../lib/platform/files.ts';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';
import { MANIFEST_FILE } from '../../lib/repository/layout.ts';
import type { FolderSourceConfig } from '../config/serving-config.ts';
import { type DesiredVersion, makeSingleVersion, type VersionSource } from './version-source.ts';

const MANIFEST_BYTES_MAX = 64 << 20;
const WATCHED_BYTES_MAX = 64 << 20;

interface ReadManifest {
  readonly text: string;
  readonly bundle: string;
  readonly version: string;
  readonly desired: DesiredVersion;
}

/** Reports the version in a folder, read again when the watched file changes. */
export class FolderSource implements VersionSource {
  readonly channels: readonly [string] = ['stable'];
  readonly #config: FolderSourceConfig;
  /** Modification time or MD5 of the watched file at the last read. */
  #lastStamp: number | string | undefined;
  #manifest: ReadManifest | undefined;

  constructor(config: FolderSourceConfig) {
    this.#config = config;
  }

  /**
   * The bundle that the last read manifest names. @throws CubeError NOT_READY before the first read
   */
  get bundle(): string {
    if (this.#manifest !== undefined) return this.#manifest.bundle;
    throw new CubeError('NOT_READY', `${this.#config.folder}: no manifest has been read yet`);
  }

  async read(): Promise<DesiredVersion | undefined> {
    const path = join(this.#config.folder, MANIFEST_FILE);
    const stamp = this.#readStamp();
    if (this.#manifest !== undefined && !this.#isChanged(stamp)) return this.#manifest.desired;
    if (this.#manifest === undefined && statPath(path) === undefined) return undefined;
    const text = readText(path, MANIFEST_BYTES_MAX);
    this.#manifest = parseVersion(text, path, this.#manifest);
    // Set only after a successful read, so that an unreadable manifest is read again at the next
    // poll.
    this.#lastStamp = stamp;
    return { ...this.#manifest.desired, isRewritten: true };
  }

  async explainMissing(): Promise<string> {
    const { folder } = this.#config;
    return (
      `${folder} has no ${MANIFEST_FILE}; copy a complete version there, ` + `${MANIFEST_FILE} last`
    );
  }

  #readStamp(): number | string | undefined {
    const { folder, reload, reloadFile = MANIFEST_FILE } = this.#config;
    const path = resolve(folder, reloadFile);
    const stat = statPath(path);
    if (stat === undefined || reload === 'none') return undefined;
    if (reload !== 'md5sum') return stat.mtimeMs;
    return createHash('md5').update(readFile(path, WATCHED_BYTES_MAX)).digest('hex');
  }

  /** A missing file is not a change: it is being replaced. */
  #isChanged(stamp: number | string | undefined): boolean {
    if (stamp === undefined) return false;
    if (this.#config.reload !== 'timestamp_gt' || this.#lastStamp === undefined) {
      return stamp !== this.#lastStamp;
    }
    return stamp > this.#lastStamp;
  }
}

/**
 * A version whose content changed keeps its earlier text, so that the problem is reported until the
 * version changes.
 */
function parseVersion(text: string, path: string, earlier: ReadManifest | undefined): ReadManifest {
  const { bundle, version } = parseManifest(text, path);
  const desired = makeSingleVersion(version);
  if (earlier?.version !== version || earlier.text === text) {
    return { text, bundle, version, desired };
  }
  const problem =
    `${path}: the content changed, but the version is still ${version}; ` +
    'build the new content as a new version';
  return { text: earlier.text, bundle, version, desired: { ...desired, problem } };
}

/**
 * A version's folder as a read-only repository: manifest.json and the version's files at the top,
 * layers in `layers/<table>/`, `layers/`, `<table>/` or at the top. A version's folder inside a
 * repository also works: its layers are found in the repository.
 */
export class VersionFolderBackend extends FolderBackend {
  /** Maps a path of the repository layout (lib/repository/layout.ts) to a path in this folder. */
  override localPath(path: string): string {
    const [, kind, first, second] = path.split('/');
    if (kind === 'versions') return join(this.location, second ?? '');
    if (kind !== 'layers' || first === undefined) return join(this.location, kind ?? '');
    const file = second ?? '';
    const preferred = join(this.location, 'layers', first, file);
    const candidates = [
      preferred,
      join(this.location, 'layers', file),
      join(this.location, first, file),
      join(this.location, file),
      join(this.location, '..', '..', 'layers', first, file),
    ];
    return candidates.find(fileExists) ?? preferred;
  }

  override async putIfAbsent(): Promise<boolean> {
    return this.#rejectWrite();
  }

  override async putFileIfAbsent(): Promise<boolean> {
    return this.#rejectWrite();
  }

  override async removeUnfinishedWrites(): Promise<void> {
    this.#rejectWrite();
  }

  #rejectWrite(): never {
    const text = `${this.location} holds one version and is read-only; publish to a repository`;
    throw new CubeError('UNSUPPORTED', text);
  }
}
