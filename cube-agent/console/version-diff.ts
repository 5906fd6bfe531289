/**
 * Rows added, removed and changed between two versions, for the console: `cube-cli diff` as a child
 * process, which reads the layers that the versions do not share. One at a time; results are kept,
 * because versions never change.
 */
import { fileURLToPath } from 'node:url';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { runChildCommand } from '../../lib/platform/one-shot-process.ts';
import type { Repository } from '../../lib/repository/repository.ts';

const MAIN = fileURLToPath(new URL('../../tools/cube-cli/main.js', import.meta.url));
/** Larger versions are compared with the command. */
const BYTES_MAX = 2 ** 30;
const TIMEOUT_MS = 120_000;
const RESULTS_MAX = 20;

interface TableChanges {
  readonly table: string;
  readonly added: number;
  readonly removed: number;
  readonly changed: number;
}

export interface VersionDiff {
  readonly tables: readonly TableChanges[];
}

export class VersionDiffs {
  readonly #results = new Map<string, VersionDiff>();
  #isRunning = false;

  /**
   * @throws CubeError UNSUPPORTED for a repository on another machine, TOO_LARGE, OVERLOADED while
   *   another comparison runs, NOT_FOUND, and those of reading
   */
  async compare(
    repository: Repository,
    bundle: string,
    before: string,
    after: string,
  ): Promise<VersionDiff> {
    const id = JSON.stringify([bundle, before, after]);
    const known = this.#results.get(id);
    if (known !== undefined) return known;
    const manifests = await Promise.all(
      [before, after].map((version) => repository.readManifest(bundle, version)),
    );
    const command = `cube-cli diff ${before} ${after} --repository <folder> --bundle ${bundle}`;
    if (!repository.isLocal) {
      const text = `rows are only compared in a folder on this machine; use: ${command}`;
      throw new CubeError('UNSUPPORTED', text);
    }
    const bytes = countBytesToRead(manifests);
    if (bytes > BYTES_MAX) {
      const text = `${bytes} bytes differ, more than the console reads (${BYTES_MAX})`;
      throw new CubeError('TOO_LARGE', `${text}; use: ${command}`);
    }
    if (this.#isRunning) {
      throw new CubeError('OVERLOADED', 'another comparison is running; try again');
    }
    this.#isRunning = true;
    try {
      const diff = await runDiff(repository.location, bundle, before, after);
      this.#results.set(id, diff);
      const [oldest] = this.#results.keys();
      if (this.#results.size > RESULTS_MAX && oldest !== undefined) this.#results.delete(oldest);
      return diff;
    } finally {
      this.#isRunning = false;
    }
  }
}

/** Bytes of the layers that only one of the versions has. */
function countBytesToRead(manifests: readonly Manifest[]): number {
  const bytes = new Map<string, number>();
  for (const { tables } of manifests) {
    for (const { name, shards } of tables) {
      for (const layer of shards.flat()) {
        const id = `${name}/${layer.contentId}`;
        if (!bytes.delete(id)) bytes.set(id, layer.bytes);
      }
    }
  }
  return [...bytes.values()].reduce((sum, size) => sum + size, 0);
}

async function runDiff(
  location: string,
  bundle: string,
  before: string,
  after: string,
): Promise<VersionDiff> {
  const args = ['diff', before, after, '--repository', location, '--bundle', bundle];
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const { code, stdout, stderr } = await runChildCommand(
    [MAIN, ...args, '--limit', '0', '--json'],
    { signal },
  );
  if (signal.aborted) {
    throw new CubeError('DEADLINE_EXCEEDED', `not compared within ${TIMEOUT_MS / 1_000} seconds`);
  }
  if (code !== 0) throw new CubeError('IO', stderr.trim() || `ended with ${code}`);
  const { tables } = JSON.parse(stdout) as VersionDiff;
  return {
    tables: tables.map(({ table, added, removed, changed }) => {
      return { table, added, removed, changed };
    }),
  };
}
