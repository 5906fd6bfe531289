/** The state of a fleet's servers for one bundle, and waiting until all of them have a version. */
import { describeTablesMismatch } from '../../lib/client/server-checks.ts';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { type Fleet, findShardMap } from '../../lib/core/fleet.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import type { BundleStatus, ControlStatus } from '../../proto/control.ts';
import { ControlClient } from './control-client.ts';
import type { ProblemFields } from './problem.ts';

const POLL_MS = 50;

export interface ServerLocation {
  readonly address: string;
  /** The shard according to fleet.json; undefined when only the address was given. */
  readonly shard: { readonly index: number; readonly shardNum: number } | undefined;
}

export interface ServerReport {
  readonly address: string;
  readonly shardIndex: number | undefined;
  readonly shardNum: number | undefined;
  readonly ready: boolean;
  readonly draining: boolean;
  /** Undefined when the server did not answer. */
  readonly memory:
    | { readonly usedBytes: number; readonly budgetBytes: number; readonly hugePages?: string }
    | undefined;
  readonly active: string | undefined;
  readonly held: readonly string[];
  readonly loading: readonly string[];
  /** Failed loads, a missing answer, a wrong shard or wrong tables. */
  readonly problems: readonly ProblemFields[];
  /** The same problems as text. */
  readonly trouble: readonly string[];
}

/** The servers of a bundle, or only those of one shard count. */
export function listServers(fleet: Fleet, bundle: string, shardNum?: number): ServerLocation[] {
  const maps =
    shardNum === undefined
      ? (fleet.bundles.get(bundle) ?? [])
      : [findShardMap(fleet, bundle, shardNum)];
  return maps.flatMap((map) =>
    map.shards.flatMap((replicas, index) =>
      replicas.map(({ control }) => ({
        address: control,
        shard: { index, shardNum: map.shardNum },
      })),
    ),
  );
}

/** The distinct agents of the bundle's hosts. */
export function listAgents(fleet: Fleet, bundle: string): string[] {
  const replicas = (fleet.bundles.get(bundle) ?? []).flatMap(({ shards }) => shards.flat());
  return [...new Set(replicas.flatMap(({ agent }) => agent ?? []))];
}

/**
 * Reads the status of every server.
 * @param manifest a version to verify: a server whose tables differ from it counts as not having it
 */
export function fetchServerReports(
  servers: readonly ServerLocation[],
  bundle: string,
  credentials: Credentials,
  manifest?: Manifest,
): Promise<ServerReport[]> {
  return Promise.all(
    servers.map(async (server) => {
      try {
        const status = await new ControlClient(server.address, credentials).status();
        const report = toServerReport(server, status, bundle);
        return manifest === undefined ? report : verifyTables(report, status, manifest);
      } catch (error) {
        return unreachableReport(server, CubeError.from(error));
      }
    }),
  );
}

function unreachableReport(
  { address, shard }: ServerLocation,
  { code, message }: CubeError,
): ServerReport {
  return {
    address,
    shardIndex: shard?.index,
    shardNum: shard?.shardNum,
    ready: false,
    draining: false,
    memory: undefined,
    active: undefined,
    held: [],
    loading: [],
    problems: [{ action: 'contact-server', server: address, code, message }],
    trouble: [message],
  };
}

function toServerReport(
  { address, shard }: ServerLocation,
  status: ControlStatus,
  bundle: string,
): ServerReport {
  const { shardIndex, shardNum, ready, draining = false, memory } = status;
  const entry: BundleStatus | undefined = status.bundles.find((b) => b.bundle === bundle);
  const failed = status.failed.filter((failure) => failure.bundle === bundle);
  const problems = failed.map(({ version, code, message }): ProblemFields => {
    return { action: 'load', version, server: address, code: code as ErrorCode, message };
  });
  const trouble = failed.map(
    ({ version, code, message }) => `loading ${version} failed: ${code} ${message}`,
  );
  if (shard !== undefined && (shard.index !== shardIndex || shard.shardNum !== shardNum)) {
    const message = `fleet.json lists this server as shard ${shard.index}/${shard.shardNum}`;
    problems.unshift({ action: 'check-shard', server: address, code: 'CONFLICT', message });
    trouble.unshift(message);
  }
  return {
    address,
    shardIndex,
    shardNum,
    ready,
    draining,
    memory: {
      usedBytes: memory.usedBytes,
      budgetBytes: memory.budgetBytes,
      ...(memory.hugePages === undefined ? {} : { hugePages: memory.hugePages }),
    },
    active: entry === undefined || entry.active === '' ? undefined : entry.active,
    held: (entry?.versions ?? []).map(({ version }) => version),
    loading: status.loading.filter((load) => load.bundle === bundle).map((load) => load.version),
    problems,
    trouble,
  };
}

/** Removes the version from a report when the server has other tables under its name. */
function verifyTables(
  report: ServerReport,
  status: ControlStatus,
  manifest: Manifest,
): ServerReport {
  const { version } = manifest;
  const { address } = report;
  const message = describeTablesMismatch(status, manifest);
  if (message === undefined) return report;
  const problem: ProblemFields = {
    action: 'check-tables',
    version,
    server: address,
    code: 'CONFLICT',
    message,
  };
  return {
    ...report,
    active: report.active === version ? undefined : report.active,
    held: report.held.filter((name) => name !== version),
    problems: [problem, ...report.problems],
    trouble: [message, ...report.trouble],
  };
}

export interface VersionWaitOptions {
  readonly manifest: Manifest;
  /** `held`: lookups by version are answered; `active`: also lookups without a version. */
  readonly until: 'active' | 'held';
  readonly timeoutMs: number;
  readonly credentials: Credentials;
}

/**
 * Waits until every server has the version.
 * @returns elapsed milliseconds
 * @throws CubeError DEADLINE_EXCEEDED naming each server without it and the reason
 */
export async function waitForVersion(
  servers: readonly ServerLocation[],
  options: VersionWaitOptions,
  clock: Clock,
): Promise<number> {
  const { manifest, until, timeoutMs, credentials } = options;
  const { bundle, version } = manifest;
  const startMs = clock.nowMs();
  for (;;) {
    const reports = await fetchServerReports(servers, bundle, credentials, manifest);
    const late = reports.filter(({ active, held }) =>
      until === 'active' ? active !== version : !held.includes(version),
    );
    const elapsedMs = clock.nowMs() - startMs;
    if (late.length === 0) return elapsedMs;
    if (elapsedMs >= timeoutMs) {
      const state = until === 'active' ? 'active' : 'loaded';
      const lines = late.map((server) => `  ${describeServer(server)}`);
      throw new CubeError(
        'DEADLINE_EXCEEDED',
        `${late.length} of ${reports.length} servers do not have version ${version} of ${bundle} ` +
          `${state} after ${timeoutMs} ms; the channel has moved, and agents keep trying. ` +
          `Check cube-agent status, or roll back:\n${lines.join('\n')}`,
      );
    }
    await clock.sleep(POLL_MS);
  }
}

function describeServer(report: ServerReport): string {
  const { address, shardIndex, shardNum, active, loading, trouble } = report;
  const loads = loading.length > 0 ? `, is loading ${loading.join(', ')}` : '';
  const reason = trouble.length > 0 ? `: ${trouble.join('; ')}` : '';
  const server = `shard ${shardIndex ?? '?'}/${shardNum ?? '?'} at ${address}`;
  return `${server} has ${active ?? 'no version'} active${loads}${reason}`;
}
