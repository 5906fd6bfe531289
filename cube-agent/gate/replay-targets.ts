/** The serving processes that a gate compares: started for it, or given by address. */
import { join } from 'node:path';
import { CtrClient } from '../../lib/client/ctr-client.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import { NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';
import { PinnedServing } from './pinned-serving.ts';
import type { ReplayTarget } from './replay.ts';

const ALIVE_TIMEOUT_MS = 5_000;

/** The store from which the started processes read embedding rows. */
export interface ServingStore {
  /**
   * fleet.json of shard servers with both versions. Undefined: the memory store, unless flags
   * differ.
   */
  readonly fleet?: string | undefined;
  /** Additional flags of serving. */
  readonly flags: readonly string[];
  /** Public keys of publishers. The processes refuse versions without their signature. */
  readonly trustedKeys?: string | undefined;
}

export interface ReplayTargetRequest {
  readonly role: 'candidate' | 'baseline';
  readonly version: string;
  /** host:port of a process that has loaded the version; undefined: one is started. */
  readonly endpoint: string | undefined;
}

export interface ReplayTargetsOptions {
  readonly repository: string;
  readonly bundle: string;
  readonly requests: readonly ReplayTargetRequest[];
  readonly store: ServingStore;
  readonly readyTimeoutMs: number;
  readonly signal: AbortSignal;
}

/**
 * Calls `use` with the targets in the order of the requests. Started processes and their files are
 * removed afterwards in any case.
 * @throws UnservableVersionError, CubeError when a process cannot be started
 */
export async function withReplayTargets<T>(
  options: ReplayTargetsOptions,
  use: (targets: readonly ReplayTarget[]) => Promise<T>,
): Promise<T> {
  const folder = new TemporaryFolder('gate');
  const stops: Stop[] = [];
  try {
    const targets: ReplayTarget[] = [];
    // One after the other: a bad candidate is reported before the baseline is loaded.
    for (const request of options.requests) {
      const { endpoint } = request;
      if (endpoint !== undefined) targets.push(toReplayTarget(request, endpoint, stops));
      else {
        const serving = await startServing(request, options, folder.path);
        stops.push(() => serving.stop());
        targets.push(toReplayTarget(request, serving.address, stops, serving));
      }
    }
    return await use(targets);
  } finally {
    await Promise.all(stops.map((stop) => stop()));
    folder.remove();
  }
}

function startServing(
  { role, version }: ReplayTargetRequest,
  { repository, bundle, store, readyTimeoutMs, signal }: ReplayTargetsOptions,
  folder: string,
): Promise<PinnedServing> {
  const flags = buildStoreFlags(store, join(folder, role));
  return PinnedServing.start({
    role,
    repository,
    bundle,
    version,
    flags,
    readyTimeoutMs,
    signal,
  });
}

/** @param dataDir a folder for this process only */
function buildStoreFlags(
  { fleet, flags: given, trustedKeys }: ServingStore,
  dataDir: string,
): string[] {
  const keys = trustedKeys === undefined ? [] : ['--trusted-keys', trustedKeys];
  const flags = [...keys, ...given];
  if (fleet !== undefined) return ['--store', 'remote', '--fleet', fleet, ...flags];
  const at = flags.indexOf('--store');
  const store = at < 0 ? 'memory' : flags[at + 1];
  const hasFolder = store === 'memory' || store === 'local';
  return [...(hasFolder ? ['--data-dir', dataDir] : []), ...flags];
}

type Stop = () => Promise<void> | void;

/** @param stops the stop of the target's client is added */
function toReplayTarget(
  { role, version }: ReplayTargetRequest,
  address: string,
  stops: Stop[],
  serving?: PinnedServing,
): ReplayTarget {
  // Without retries, so that every failure is counted.
  const client = new CtrClient({ url: `http://${address}`, retryMax: 0 });
  stops.push(() => client.close());
  const peer = { address, credentials: NO_CREDENTIALS, role: 'serving' };
  const requireAlive = async (): Promise<void> => {
    try {
      await callJson(peer, '/healthz', { timeoutMs: ALIVE_TIMEOUT_MS });
    } catch (error) {
      if (serving?.exitError !== undefined) throw serving.exitError;
      const { code, message } = CubeError.from(error);
      throw new CubeError(code, `the ${role} does not answer any more: ${message}`);
    }
  };
  return { role, version, client, requireAlive };
}
