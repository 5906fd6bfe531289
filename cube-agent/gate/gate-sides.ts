/** The one or two serving processes that a gate compares: started for it, or given by their addresses. */
import { join } from 'node:path';
import { CtrClient } from '../../lib/client/ctr-client.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import { NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';
import { PinnedServing } from './pinned-serving.ts';
import type { Side } from './replay.ts';

const ALIVE_TIMEOUT_MS = 5_000;

/** Where the rows of the two versions come from. */
export interface SideStore {
  /** Shard servers that hold both versions. Without: tables in the memory of the process, unless the flags say otherwise. */
  readonly fleet?: string | undefined;
  /** Further flags of serving. */
  readonly flags: readonly string[];
  /** Public keys: the processes take only what one of them has signed, as the gate itself does. */
  readonly trustedKeys?: string | undefined;
}

export interface SideWish {
  readonly role: 'candidate' | 'baseline';
  readonly version: string;
  /** host:port of a process that holds the version; undefined: one is started. */
  readonly endpoint: string | undefined;
}

export interface SidesOptions {
  readonly repository: string;
  readonly bundle: string;
  readonly wishes: readonly SideWish[];
  readonly store: SideStore;
  readonly readyTimeoutMs: number;
  readonly signal: AbortSignal;
}

/**
 * Gives `use` the sides, in the order of the wishes; afterwards, whatever happens, nothing of them is left.
 * @throws UnfitVersion, CubeError when a side does not come up
 */
export async function withSides<T>(
  options: SidesOptions,
  use: (sides: readonly Side[]) => Promise<T>,
): Promise<T> {
  const folder = new TemporaryFolder('gate');
  const stops: (() => Promise<void> | void)[] = [];
  try {
    const sides: Side[] = [];
    // One after the other: what is wrong with the candidate is said before the other is loaded.
    for (const wish of options.wishes) {
      const { endpoint } = wish;
      const serving =
        endpoint === undefined ? await startOne(wish, options, folder.path) : undefined;
      if (serving !== undefined) stops.push(() => serving.stop());
      const client = clientOf(serving?.address ?? endpoint!);
      stops.push(() => client.close());
      sides.push(sideOf(wish, serving, client));
    }
    return await use(sides);
  } finally {
    await Promise.all(stops.map((stop) => stop()));
    folder.remove();
  }
}

function startOne(
  { role, version }: SideWish,
  { repository, bundle, store, readyTimeoutMs, signal }: SidesOptions,
  folder: string,
): Promise<PinnedServing> {
  const flags = storeFlags(store, join(folder, role));
  return PinnedServing.start({
    ...{ role, repository, bundle, version, flags, readyTimeoutMs, signal },
  });
}

/** @param dataDir each process's own */
function storeFlags({ fleet, flags: given, trustedKeys }: SideStore, dataDir: string): string[] {
  const keys = trustedKeys === undefined ? [] : ['--trusted-keys', trustedKeys];
  const flags = [...keys, ...given];
  if (fleet !== undefined) return ['--store', 'remote', '--fleet', fleet, ...flags];
  const at = flags.indexOf('--store');
  const store = at < 0 ? 'memory' : flags[at + 1];
  const hasFolder = store === 'memory' || store === 'local';
  return [...(hasFolder ? ['--data-dir', dataDir] : []), ...flags];
}

/** No retries: what fails is counted. */
function clientOf(address: string): CtrClient {
  return new CtrClient({ url: `http://${address}`, retryMax: 0 });
}

function sideOf(
  { role, version, endpoint }: SideWish,
  serving: PinnedServing | undefined,
  client: CtrClient,
): Side {
  const address = serving?.address ?? endpoint!;
  const peer = { address, credentials: NO_CREDENTIALS, name: 'serving' };
  const requireAlive = async (): Promise<void> => {
    try {
      await callJson(peer, '/healthz', { timeoutMs: ALIVE_TIMEOUT_MS });
    } catch (error) {
      if (serving?.end !== undefined) throw serving.end;
      const { code, message } = CubeError.from(error);
      throw new CubeError(code, `the ${role} is gone: ${message}`);
    }
  };
  return { role, version, client, requireAlive };
}
