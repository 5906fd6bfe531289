/**
 * A stand-in for cube-server with only the control calls. It "loads" a version by checking the
 * files of its shard in the data folder.
 */
import { existsSync, readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { CubeError } from '../../../lib/core/errors.ts';
import { getTablesDigest, type Manifest, parseManifest } from '../../../lib/core/manifest.ts';
import { layerPath, manifestPath } from '../../../lib/repository/layout.ts';
import type { VersionRequest } from '../../../proto/control.ts';
import { onTestEnd, sha256 } from '../../repository/support/fixtures.ts';

export interface Shard {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly dataDir: string;
}

export class ControlServer {
  readonly #shard: Shard;
  readonly #server: Server;
  /** Loaded versions with the digest of their tables. */
  #held = new Map<string, string>();
  #active = '';
  #pid = 1;
  /** Calls that changed the server, for example "load 1". */
  readonly calls: string[] = [];
  /** What continues the requests that wait while the server hangs; undefined when it does not. */
  #waiting: (() => void)[] | undefined;
  /** Called before a version is unloaded. */
  beforeUnload: () => Promise<void> = async () => undefined;
  /** Refuses loads with this error. */
  loadError: CubeError | undefined;
  /** Closes connections without an answer. */
  isUnreachable = false;

  private constructor(shard: Shard) {
    this.#shard = shard;
    this.#server = createServer((request, response) => void this.#answer(request, response));
  }

  static async start(t: TestContext, shard: Shard): Promise<ControlServer> {
    const server = new ControlServer(shard);
    await new Promise<void>((resolve) => server.#server.listen(0, '127.0.0.1', resolve));
    onTestEnd(t, () => {
      server.#server.closeAllConnections();
      server.#server.close();
    });
    return server;
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  get active(): string {
    return this.#active;
  }

  get loaded(): string[] {
    return [...this.#held.keys()].sort();
  }

  /** Loads other tables under the name of a version. */
  loadOtherRows(version: string): void {
    this.#held.set(version, '0123456789abcdef');
  }

  /** Acts like a new process on the same port without versions. */
  restart(): void {
    this.#held = new Map();
    this.#active = '';
    this.#pid += 1;
  }

  /** Accepts connections and answers nothing before `resume`, like a stopped process. */
  hang(): void {
    this.#waiting ??= [];
  }

  /** Answers what has come meanwhile, unless the caller has given it up. */
  resume(): void {
    const waiting = this.#waiting ?? [];
    this.#waiting = undefined;
    for (const proceed of waiting) proceed();
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const waiting = this.#waiting;
    if (waiting !== undefined) await new Promise<void>((resolve) => waiting.push(resolve));
    if (request.destroyed) return;
    if (this.isUnreachable) {
      request.destroy();
      return;
    }
    let body = '';
    for await (const piece of request.setEncoding('utf8')) body += piece;
    const call = request.url?.split('/').at(-1) ?? '';
    try {
      if (call === 'unload') await this.beforeUnload();
      const answer = call === 'status' ? this.#status() : this.#act(call, JSON.parse(body));
      response.end(JSON.stringify(answer));
    } catch (error) {
      const { code, message, status } = CubeError.from(error);
      response.statusCode = status.http;
      response.end(JSON.stringify({ code, error: message }));
    }
  }

  #status(): unknown {
    const { shardIndex, shardNum } = this.#shard;
    const versions = [...this.#held].map(([version, digest]) => ({
      version,
      rows: 1,
      bytes: 1,
      idleMs: 60_000,
      tablesDigest: digest,
    }));
    return {
      shardIndex,
      shardNum,
      ready: this.#active !== '',
      pid: this.#pid,
      bundles: [{ bundle: 'ctr', active: this.#active, versions }],
      loading: [],
      failed: [],
      memory: { budgetBytes: 0, usedBytes: 0, pooledBytes: 0 },
    };
  }

  #act(call: string, request: VersionRequest): unknown {
    const { version } = request;
    if (call === 'load') this.#load(request);
    else if (!this.#held.has(version)) throw new CubeError('VERSION_ABSENT', `${version} not held`);
    this.calls.push(`${call} ${version}`);
    if (call === 'activate') {
      this.#active = version;
      return { active: version };
    }
    if (call === 'unload') {
      if (this.#active === version) throw new CubeError('CONFLICT', `${version} is active`);
      return { unloaded: this.#held.delete(version) };
    }
    return { layersLoaded: 1, layersShared: 0, bytes: 1, durationMs: 0.5 };
  }

  #load({ bundle, version }: VersionRequest): void {
    if (this.loadError !== undefined) throw this.loadError;
    const { dataDir, shardIndex } = this.#shard;
    const path = join(dataDir, manifestPath(bundle, version));
    if (!existsSync(path)) throw new CubeError('NOT_FOUND', `${path} is missing`);
    const manifest = readStoredManifest(path);
    for (const table of manifest.tables) {
      for (const layer of table.shards[shardIndex] ?? []) {
        const file = join(dataDir, layerPath(bundle, table.name, layer.contentId));
        if (sha256(readFileSync(file)) === layer.sha256) continue;
        throw new CubeError('CORRUPT', `${file} is damaged`);
      }
    }
    if (!this.#held.has(version)) this.#held.set(version, getTablesDigest(manifest));
  }
}

/**
 * Like the real server: a stored manifest that does not parse is damaged.
 */
function readStoredManifest(path: string): Manifest {
  try {
    return parseManifest(readFileSync(path, 'utf8'), path);
  } catch (error) {
    throw new CubeError('CORRUPT', (error as Error).message);
  }
}

/** One server for each shard, all with one data folder. */
export function startServers(
  t: TestContext,
  shardNum: number,
  dataDir: string,
): Promise<ControlServer[]> {
  return Promise.all(
    Array.from({ length: shardNum }, (_, shardIndex) =>
      ControlServer.start(t, { shardIndex, shardNum, dataDir }),
    ),
  );
}
